"""Outputs of a few samples in a batch of their own, with which every batch is compared."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.ntk.empirical_kernel.deferred_checks import FEW, DeferredChecks
from normplace.ntk.empirical_kernel.output_agreement import few_values_agree, outputs_agree, tolerance_of
from normplace.ntk.empirical_kernel.parameter_uses import ParameterTracker
from normplace.ntk.model_state import cannot_run, differentiable

# Enough that a model which shuffles its batch leaves them in place with probability 1/8! only.
PROBE_SAMPLES = 8


@dataclass(frozen=True)
class Probe:
    """The outputs of a few samples, which must be the same in every batch."""

    model: nn.Module
    x: Tensor
    """The samples."""
    y: Tensor
    """Their outputs, computed together."""
    rows: Mapping[int, int]
    """Positions among the probe of samples of x1, by their positions in x1."""
    columns: Mapping[int, int]
    """The same for x2; those of x1 if there is no x2."""

    def compare(self, y: Tensor, positions: Mapping[int, int], checks: DeferredChecks) -> None:
        """Compare with the outputs of a batch.

        Args:
            y: The outputs.
            positions: Positions among the probe of samples of the batch, by their positions in the batch.
            checks: Receives the comparison.
        """
        if not positions:
            return
        y, probe, own = y.detach(), self.y, tuple(positions.values())
        rows = y if len(positions) == y.shape[0] else _rows(y, tuple(positions))
        if len(positions) == y.shape[0]:
            own = tuple([positions[i] for i in range(y.shape[0])])
        if rows.numel() + probe.numel() > FEW or rows.device != probe.device:
            checks.require(outputs_agree(rows, _rows(probe, own), probe), self.refuse)
            return
        checks.require_values(
            torch.cat([rows, probe]), functools.partial(_values_agree, own, y.shape[1], tolerance_of(y)), self.refuse
        )

    def repeat(self, checks: DeferredChecks) -> None:
        """Compute the probe again, and its first sample alone."""
        with torch.enable_grad():
            again, first = (forward(self.model, x, self.y.shape[1]) for x in (self.x, self.x[:1]))
        checks.require(outputs_agree(again, self.y), self.refuse)
        checks.require(outputs_agree(first, self.y[:1], self.y), self.refuse)

    def refuse(self) -> NoReturn:
        """Raise the error for outputs that differ.

        Raises:
            UsageError: Always.
        """
        with torch.enable_grad():
            again = forward(self.model, self.x, self.y.shape[1])
        if not bool(outputs_agree(again, self.y)):
            raise UsageError(
                "the model returns different outputs for the same input, so its kernel is undefined: "
                "call model.eval() or remove the randomness from its forward pass."
            )
        raise UsageError(
            "the model's output for one sample changes with the other samples in the batch, so there is no "
            "kernel between two samples: remove what mixes samples, such as batch statistics or a "
            "recurrence over the sample axis."
        )


def _values_agree(positions: Sequence[int], outputs: int, tolerance: float, values: list[float]) -> bool:
    """Whether outputs of a batch are those of the probe at some positions, which follow them in ``values``."""
    count = len(positions) * outputs
    batch, probe = values[:count], values[count:]
    expected = [value for i in positions for value in probe[i * outputs : (i + 1) * outputs]]
    return few_values_agree(zip(batch, expected, strict=True), probe, tolerance)


def forward(model: nn.Module, x: Tensor, outputs: int | None = None, tracker: ParameterTracker | None = None) -> Tensor:
    """The model's outputs as samples × outputs.

    Args:
        model: The network.
        x: Samples.
        outputs: Number of outputs, if known.
        tracker: Records the model's use of its parameters.

    Raises:
        UsageError: If the output is not one floating-point tensor with a row per sample.
    """
    n = x.shape[0]
    # A model that starts with an in-place operation must not change the caller's data.
    copy = x.detach().clone()
    try:
        with differentiable(model), nullcontext() if tracker is None else tracker:
            y = model(copy)
    except UsageError:
        raise
    except Exception as error:
        raise cannot_run(f"{n} sample(s) of shape {tuple(x.shape[1:])} and dtype {x.dtype}", error) from error
    if not isinstance(y, Tensor):
        raise UsageError(
            f"the model returns a {type(y).__name__}, not a tensor: wrap it in a module that returns one tensor."
        )
    if not y.is_floating_point():
        raise UsageError(
            f"the model's output has dtype {y.dtype}, which has no gradient: return a real floating tensor."
        )
    # ``squeeze()`` in a model removes the axis of a single sample; the number of outputs identifies this case.
    alone = n == 1 and outputs is not None and y.numel() == outputs
    if not alone and (y.ndim == 0 or y.shape[0] != n):
        raise UsageError(
            f"the model turns {n} samples into an output of shape {tuple(y.shape)}, which is not one row per "
            "sample: put the samples on the first axis of the input and of the output."
        )
    if y.numel() == 0:
        raise UsageError(f"the model's output has shape {tuple(y.shape)} and holds no numbers: return at least one.")
    return y if y.ndim == 2 and y.shape[0] == n else y.reshape(n, -1)


def probe_samples(
    x1: Tensor, x2: Tensor | None, *, without: int | None = None
) -> tuple[Tensor, Mapping[int, int], Mapping[int, int]]:
    """A few samples spread over the data, in shuffled order, and where those of x1 and x2 are among them.

    Args:
        x1: Samples along the rows.
        x2: Samples along the columns, if they are others.
        without: If the probe would have this many samples, and more than one, it has its first sample twice. It is then
            another batch than that of all samples, and has all of them.
    """
    order = _probe_order(x1.shape[0], None if x2 is None else x2.shape[0], without)
    x = x1 if x2 is None else torch.cat([_rows(x1, order.first), _rows(x2, order.second)])
    return _rows(x, order.joined), order.rows, order.columns


class _ProbeOrder(NamedTuple):
    """The samples of a probe."""

    first: tuple[int, ...]
    """Positions of the samples of x1."""
    second: tuple[int, ...]
    """Positions of the samples of x2."""
    joined: tuple[int, ...]
    """The order of the probe: positions in x1, or among all these samples if there is an x2."""
    rows: Mapping[int, int]
    columns: Mapping[int, int]


@functools.lru_cache(maxsize=256)
def _probe_order(size: int, other: int | None, without: int | None) -> _ProbeOrder:
    """The probe of ``size`` samples of x1 and ``other`` samples of x2."""
    sizes = [size] if other is None else [size, other]
    picks: list[tuple[int, int]] = []
    for pool, total in enumerate(sizes):
        count = min(total, PROBE_SAMPLES // len(sizes))
        picks += [(pool, (total - 1) * i // max(1, count - 1)) for i in range(count)]
    chosen = [tuple(position for pool, position in picks if pool == wanted) for wanted in range(len(sizes))]
    places = {pick: i for i, pick in enumerate(picks)}
    picks = picks * 2 if len(picks) == 1 else picks
    # Neighbours differ from those in the data, even if the data repeats, and the first and the last are inside.
    stride = 3 if len(picks) == PROBE_SAMPLES else 1
    shuffled = [picks[(i * stride + len(picks) // 2) % len(picks)] for i in range(len(picks))]
    if 1 < len(shuffled) == without:
        shuffled.insert(0, shuffled[0])
    rows, columns = (
        {position: i for i, (pool, position) in enumerate(shuffled) if pool == wanted} for wanted in (0, len(sizes) - 1)
    )
    joined = tuple([position if other is None else places[pool, position] for pool, position in shuffled])
    return _ProbeOrder(chosen[0], chosen[-1], joined, rows, columns)


def _rows(tensor: Tensor, positions: tuple[int, ...]) -> Tensor:
    """A copy of some rows."""
    return tensor.index_select(0, _index(positions, tensor.device))


@functools.lru_cache(maxsize=256)
def _index(positions: tuple[int, ...], device: torch.device) -> Tensor:
    """Positions as a tensor. It is kept, because a copy to a GPU waits."""
    return torch.tensor(positions, device=device)
