"""The steps of one short training run in one process, with measurements at chosen steps.

:mod:`normplace.lab.train.loop` trains one network for long, on many processes and with checkpoints. This loop is for
many networks in one process: it writes no files, reads losses in blocks, and takes network and optimizer from the
caller. A run that has to stop at a deadline writes one file, and the next call with that file resumes it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.lab.train.config import TrainConfig
from normplace.lab.train.cuda_graph import GraphedStep, set_learning_rate
from normplace.lab.train.data import TokenWindows
from normplace.lab.train.divergence import WINDOW, DivergenceDetector
from normplace.lab.train.sequence import autocast

BLOCK = 20
"""Steps whose losses are copied from the device at once."""


class Paused(BaseException):
    """The deadline passed and the run was saved. Like ``KeyboardInterrupt``, it is not an error of the run."""


@dataclass(frozen=True)
class Pause:
    """When to stop, and where to save the run.

    Args:
        path: The file; a run resumes from it if it exists, and deletes it at its end.
        deadline: Value of ``time.monotonic()``.
    """

    path: Path
    deadline: float


@dataclass
class StepHistory:
    """The numbers of all steps taken.

    Args:
        losses: Loss of each step, in nats per token.
        gradient_norms: Norm of each gradient before clipping.
        measured: Results of the measurements by the number of steps taken before them.
        diverged: Why the run was stopped; None if it took all steps.
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    measured: dict[int, Any] = field(default_factory=dict)
    diverged: str | None = None


def take_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    windows: TokenWindows,
    config: TrainConfig,
    device: torch.device,
    *,
    measure: Callable[[int], Any],
    measure_at: Collection[int],
    pause: Pause | None = None,
    cuda_graph: bool = False,
) -> StepHistory:
    """Train on next-token prediction to the last step, or until the loss diverges.

    Args:
        model: Maps tokens to logits; trained in place.
        optimizer: Its optimizer; the learning rate is set at every step.
        windows: The training sequences.
        config: How to train.
        device: The device of the model.
        measure: Called with the number of steps taken; returns plain numbers, lists and dictionaries.
        measure_at: Numbers of steps after which to measure; after the last step it is always measured.
        pause: When to stop and save the run; None to run to the end.
        cuda_graph: Whether to replay a recorded step instead of launching its kernels one by one; only on a GPU, with
            the optimizer of :func:`~normplace.lab.train.optimizer.graphed_adamw`.

    Raises:
        Paused: If the deadline passed.
    """
    schedule = config.learning_rate_schedule()
    detector = DivergenceDetector(config.spike, config.patience)
    history = StepHistory()
    if pause is not None and pause.path.exists():
        _resume(pause.path, model, optimizer, detector, history)
    numbers = torch.zeros(config.steps, 2, device=device)
    step = _Step(model, optimizer, config, device)
    take_step = GraphedStep(step) if cuda_graph and device.type == "cuda" else step
    model.train()
    for taken in range(len(history.losses), config.steps):
        set_learning_rate(optimizer, schedule.learning_rate(taken))
        if taken in measure_at and taken not in history.measured:
            history.measured[taken] = measure(taken)
            model.train()
        take_step(_sequences(windows, taken, config, device))
        numbers[taken] = step.numbers
        if (taken + 1) % BLOCK == 0 or taken + 1 == config.steps:
            _read(numbers[len(history.losses) : taken + 1], detector, history)
            if history.diverged is not None:
                break
            if pause is not None and time.monotonic() > pause.deadline and taken + 1 < config.steps:
                _save(pause.path, model, optimizer, detector, history)
                raise Paused
    history.measured[len(history.losses)] = measure(len(history.losses))
    if pause is not None:
        pause.path.unlink(missing_ok=True)
    return history


def _sequences(windows: TokenWindows, taken: int, config: TrainConfig, device: torch.device) -> Tensor:
    """The sequences of a step, without waiting for the device."""
    sequences = windows.sequences(taken * config.batch, config.batch)
    return sequences.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else sequences


class _Step:
    """One optimizer step, without waiting for the device; ``numbers`` has its loss and gradient norm."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, config: TrainConfig, device: torch.device
    ) -> None:
        self.model, self.optimizer, self.config = model, optimizer, config
        self.numbers = torch.zeros(2, device=device)

    def __call__(self, sequences: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.numbers.zero_()
        for part in sequences.tensor_split(self.config.accumulate):
            loss = token_loss(self.model, part, self.config.precision) / self.config.accumulate
            loss.backward()
            self.numbers[0] += loss.detach()
        self.numbers[1] = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()


def token_loss(model: nn.Module, sequences: Tensor, precision: str, reduction: str = "mean") -> Tensor:
    """Cross-entropy of the next token, in nats.

    Args:
        model: Maps tokens to logits.
        sequences: Tokens, batch × (context + 1).
        precision: ``float32`` or ``bfloat16``.
        reduction: ``mean`` or ``sum`` over tokens.
    """
    with autocast(precision, sequences.device):
        logits = model(sequences[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten(), reduction=reduction)


def _read(numbers: Tensor, detector: DivergenceDetector, history: StepHistory) -> None:
    """Copy the numbers of a block of steps from the device, and check them."""
    for loss, gradient_norm in numbers.tolist():
        history.losses.append(loss)
        history.gradient_norms.append(gradient_norm)
        history.diverged = detector.update(loss, gradient_norm)
        if history.diverged is not None:
            return


def _save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, detector: DivergenceDetector, history: StepHistory
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "detector": detector.state_dict()}
    torch.save({**state, "history": vars(history)}, draft)
    draft.replace(path)


def _resume(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, detector: DivergenceDetector, history: StepHistory
) -> None:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    detector.load_state_dict(state["detector"])
    vars(history).update(state["history"])


def spikes(values: Sequence[float], is_spike: Callable[[float, float], bool], first: int = 0) -> int:
    """Number of values that are spikes above the median of the :data:`~normplace.lab.train.divergence.WINDOW` before.

    A value that is not finite is a spike.

    Args:
        values: One per step.
        is_spike: From a value and that median to whether it is one.
        first: First step to consider.

    Example:
        >>> spikes([1.0] * 70 + [4.0] + [1.0] * 9, lambda value, middle: value > 3 * middle)
        1
    """
    count = 0
    for index in range(max(first, WINDOW), len(values)):
        middle = median(values[index - WINDOW : index])
        count += not math.isfinite(values[index]) or is_spike(values[index], middle)
    return count
