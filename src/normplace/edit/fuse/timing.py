"""Time training steps of a fused model and of the original in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from normplace._shared.modules import device_of
from normplace.edit.fuse.apply import without_compiled_branches
from normplace.edit.fuse.numbers import Loss, run_step
from normplace.edit.verify.capture import Arguments
from normplace.edit.verify.gradients import differentiable
from normplace.stack.mode import fusion_mode

WARM_UP, TURNS = 3, 10


class StepTimes(NamedTuple):
    """Milliseconds of a forward and backward pass, medians."""

    original: float
    fused: float

    @property
    def is_faster(self) -> bool:
        """Whether the fused model is faster by more than one percent."""
        return self.fused < 0.99 * self.original

    def __str__(self) -> str:
        return f"{self.original:.2f} ms before and {self.fused:.2f} ms after, forward and backward"


def time_steps(model: nn.Module, arguments: Arguments, loss: Loss | None) -> StepTimes:
    """Time a fused model with and without its fused parts, in turns."""
    device = device_of(model)
    times: dict[bool, list[float]] = {True: [], False: []}
    with differentiable(model):
        for turn in range(WARM_UP + TURNS):
            for is_fused in (False, True):
                with _as_original(model, not is_fused):
                    _synchronize(device)
                    start = time.perf_counter()
                    run_step(model, arguments, loss)
                    _synchronize(device)
                    if turn >= WARM_UP:
                        times[is_fused].append(1e3 * (time.perf_counter() - start))
    return StepTimes(statistics.median(times[False]), statistics.median(times[True]))


@contextmanager
def _as_original(model: nn.Module, is_original: bool) -> Iterator[None]:
    if not is_original:
        yield
        return
    with fusion_mode("never"), without_compiled_branches(model):
        yield


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
