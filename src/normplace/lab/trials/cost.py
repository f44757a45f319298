"""Cost of a computation, independent of the machine's speed: peak memory and numbers read."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity


def peak_bytes(step: Callable[[], None], device: torch.device) -> int:
    """Peak of the memory in use during a step, in bytes above the start."""
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
    """Number of elements that the operations of a step read on a CPU, including nested operations.

    It adds the sizes of all inputs of all PyTorch operations. A good kernel reads fewer elements by a constant factor;
    the count grows with the problem size as the computation does.
    """
    with _quiet(), torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profile:
        step()
    return sum(math.prod(shape) for event in profile.events() or () for shape in event.input_shapes if shape)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress standard error: the profiler writes to it at start and stop, at every log level."""
    stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
