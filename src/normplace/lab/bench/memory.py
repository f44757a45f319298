"""The most memory a call takes at a time, its results included, over what it found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from normplace.lab.bench.allocator import return_freed

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[[], object], device: str) -> int | None:
    """Bytes; None where there is no way to know.

    On a GPU it is what the allocator gave out, on a CPU the high-water mark of the process's resident set, which
    Linux tells. The call must have run before: what is loaded and compiled on first use is not its own. The process
    must not have called :func:`~normplace.lab.bench.allocator.keep_freed`.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = call()
        torch.cuda.synchronize()
        del kept
        return torch.cuda.max_memory_allocated() - before
    if not _CLEAR.exists():
        return None
    return_freed()  # what was kept would hide what is taken
    _CLEAR.write_text("5")  # the high-water mark starts anew
    before = _resident("VmRSS")
    kept = call()
    del kept
    return max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
