"""Signals of the network during training: stream, branches and gradients at every depth, on a fixed batch.

The measurement does not change training: it runs in evaluation mode, and leaves parameters, gradients, optimizer and
RNG state as they are. The first process measures. Under FSDP, whose parameters are sharded, it measures a copy of the
network with the gathered parameters; the copy is on the CPU between two measurements.
"""

from __future__ import annotations

import copy
import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.fields import check_types
from normplace.analysis.recording.passes import uncompiled_calls
from normplace.analysis.signal_probe.probe import Probe
from normplace.analysis.signal_probe.results import COLUMNS, Signals
from normplace.errors import expect_ranges
from normplace.lab.train.distributed import ProcessGroup, full_state_dict, unwrap
from normplace.lab.train.sequence import autocast

HEADROOM = ("fp16_headroom", "bf16_headroom")


@dataclass(frozen=True, kw_only=True)
class SignalsConfig:
    """When and on what to measure.

    Args:
        every: Steps between two measurements; the first is before the first step, the last after the last.
        sequences: Held-out sequences in the batch.

    Raises:
        UsageError: If a value has the wrong type or is below 1.
    """

    every: int = 200
    sequences: int = 4

    def __post_init__(self) -> None:
        check_types(self)
        expect_ranges(self, "every", "sequences", least=1)


class SignalMonitor:
    """Measures a network while it trains.

    Args:
        config: When to measure.
        model: The network, before it is distributed over processes and compiled.
        held_out: Held-out sequences; the first ones are the batch.
        precision: Precision of training.
        group: The processes.
        is_sharded: Whether the parameters will be sharded over the processes.
    """

    def __init__(
        self,
        config: SignalsConfig,
        model: nn.Module,
        held_out: Tensor,
        precision: str,
        group: ProcessGroup,
        is_sharded: bool,
    ) -> None:
        self.config, self.precision, self.group = config, precision, group
        self.is_sharded = is_sharded
        batch = held_out[: config.sequences]
        self._inputs, self._targets = batch[:, :-1], batch[:, 1:]
        self._copy = copy.deepcopy(model).cpu() if is_sharded and group.is_first else None
        self._probe = Probe()

    def is_due(self, taken: int, steps: int) -> bool:
        """Whether to measure after ``taken`` of ``steps`` steps."""
        return taken % self.config.every == 0 or taken == steps

    def measure(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Signals | None:
        """Measure in the first process; the others return None, but must call it too.

        Args:
            model: The model that :func:`normplace.lab.train.distributed.distribute` returned.
            optimizer: Its optimizer, for the effective learning rate; not available under FSDP.

        Raises:
            UsageError: In every process, if the model cannot be measured, such as one without residual adds.
        """
        weights = full_state_dict(model, self.group) if self.is_sharded else {}
        signals = None
        with self.group.share_errors():
            if self._copy is not None:
                self._copy.load_state_dict(weights)
                signals = self._measure(self._copy.to(self.group.device), None)
                self._copy.cpu()
            elif self.group.is_first:
                signals = self._measure(unwrap(model), optimizer)
        return signals

    def _measure(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Signals:
        inputs, targets = self._inputs.to(self.group.device), self._targets.to(self.group.device)

        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

        with ExitStack() as stack:
            stack.enter_context(uncompiled_calls())  # compiled operators cannot be recorded
            stack.enter_context(autocast(self.precision, self.group.device))
            signals = self._probe.measure(model, inputs, loss, optimizer)
        if optimizer is None:  # without the optimizer it is that of a gradient step
            depths = tuple(dataclasses.replace(depth, effective_lr=None) for depth in signals.depths)
            signals = dataclasses.replace(signals, depths=depths)
        return signals


def log_fields(signals: Signals) -> dict[str, Any]:
    """The fields of a line of the log: one list per measured quantity, with one entry per depth."""
    columns = {name: [getattr(depth, name) for depth in signals.depths] for name in (*COLUMNS, *HEADROOM)}
    measured = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    names = [depth.name for depth in signals.depths]
    return {"loss": signals.loss, "gradient_norm": signals.gradient, "depths": names, **measured}
