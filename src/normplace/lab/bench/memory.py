"""Peak memory of a call, including its results, above the memory in use before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from normplace.lab.bench.allocator import return_freed

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[[], object], device: str) -> int | None:
    """Peak memory in bytes; None if the system does not report it.

    On a GPU this is the allocator's peak, on a CPU the high-water mark of the process's resident set, which Linux
    reports. The call must have run before, because modules loaded and kernels compiled at first use do not count. The
    process must not have called :func:`~normplace.lab.bench.allocator.keep_freed`.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = call()
        torch.cuda.synchronize()
        del results
        return torch.cuda.max_memory_allocated() - before
    if not _CLEAR.exists():
        return None
    return_freed()  # kept blocks would hide new allocations
    _CLEAR.write_text("5")  # resets the high-water mark
    before = _resident("VmRSS")
    results = call()
    del results
    return max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
