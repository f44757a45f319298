"""Limits of the GPU that a kernel's layout must respect.

The layouts of each op are data in its ``layouts.py``. Their numbers are the fastest of those tried on one NVIDIA H200
(132 multiprocessors, 227 KiB of shared memory for a program, warps of 32 threads) in November 2026 with torch 2.11,
triton 3.6 and ``normplace bench aggregate norm_add_norm relation --tune``. They affect time alone. On other GPUs a
program has at most :data:`MAX_THREADS` threads, and rows are not pipelined where shared memory is too small;
``tests/ops/test_layouts.py`` compiles the other kernels for GPUs with little shared memory.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton

# Threads that a program may have on every GPU that Triton supports.
MAX_THREADS = 1024


class GPULimits(NamedTuple):
    """What limits the layout of a kernel."""

    multiprocessors: int
    shared_bytes: int
    """Shared memory that one program may use."""
    warp_size: int

    def warps(self, wanted: int) -> int:
        """At most so many warps as a program may have."""
        return min(wanted, MAX_THREADS // self.warp_size)


# Triton's interpreter: no pipelining, and few programs so that each walks over several tiles.
INTERPRETER = GPULimits(multiprocessors=2, shared_bytes=0, warp_size=32)


@functools.cache
def gpu_limits(device: torch.device) -> GPULimits:
    """The limits of a device."""
    if device.type != "cuda":
        return INTERPRETER
    driver: Any = triton.runtime.driver
    properties = driver.active.utils.get_device_properties(device.index)
    return GPULimits(properties["multiprocessor_count"], properties["max_shared_mem"], properties["warpSize"])
