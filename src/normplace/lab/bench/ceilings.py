"""Hardware limits, measured in the same run as the ops."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from normplace.lab.bench.timing import median_seconds

UNITS = {"copy": ("TB/s", 1e12), "gemm": ("TFLOP/s", 1e12), "exp": ("Texp/s", 1e12)}
"""Unit of each limit, and its size in base units."""

_PROGRAMS, _BLOCK, _COUNT = 132 * 64, 1024, 512


def ceilings(device: str) -> dict[str, float]:
    """Bytes copied (read and written), float32 operations of a matrix product, and exponentials, each per second.

    Empty on a CPU, where results are ratios.
    """
    if device != "cuda":
        return {}
    rates = {"copy": copy_rate(), "gemm": gemm_rate()}
    if importlib.util.find_spec("triton") is not None:
        rates["exp"] = exp_rate()
    return rates


def copy_rate() -> float:
    """Bytes per second that a device copy reads and writes."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), "cuda")


def gemm_rate() -> float:
    """Operations per second of a float32 matrix product, at PyTorch's precision setting."""
    size = 8192
    a = torch.randn(size, size, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    return 2 * size**3 / median_seconds(lambda: a @ a, "cuda")


def exp_rate() -> float:
    """Exponentials per second."""
    from normplace.lab.bench import exp_kernel

    kernel: Any = exp_kernel.exponentials  # launched with a grid, which its Python signature does not show
    out = torch.empty(_PROGRAMS * _BLOCK, device="cuda")
    seconds = median_seconds(lambda: kernel[(_PROGRAMS,)](out, COUNT=_COUNT, BLOCK=_BLOCK, num_warps=4), "cuda")
    return _PROGRAMS * _BLOCK * _COUNT / seconds
