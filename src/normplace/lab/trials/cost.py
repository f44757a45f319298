"""What a computation takes, whatever the machine: memory, and numbers that are read."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity


def peak_bytes(step: Callable[[], None], device: torch.device) -> int:
    """Bytes by which memory in use rose at most during a step."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _quiet(), torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    assert profile.profiler is not None
    results: Any = profile.profiler.kineto_results
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    used = torch.tensor([0, *(nbytes for _, nbytes in changes)]).cumsum(0)
    return int(used.max())


def elements_read(step: Callable[[], None]) -> int:
    """How many numbers the operations of a step read on a CPU, those inside other operations included.

    It counts the sizes of all inputs of all of PyTorch's operations. So it overstates by a factor what a good kernel
    would read, but how it grows is how the computation grows.
    """
    with _quiet(), torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profile:
        step()
    return sum(math.prod(shape) for event in profile.events() or () for shape in event.input_shapes if shape)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the profiler writes to the error stream whenever it starts and stops, whatever its log level."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
