"""Dropout masks that depend on a key and the place of an element alone.

A mask is a hash of the place, so it is computed where it is needed and never stored, and a seed has the same masks
whatever other seeds are trained with it, however large the batch's room is, and on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw_keys(generator: torch.Generator, *shape: int) -> Tensor:
    """Random keys of masks, 32 bits each."""
    return torch.randint(-(2**31), 2**31, shape, generator=generator).int()


def drop(x: Tensor, key: Tensor, probability: float) -> Tensor:
    """Dropout of seeds × atoms × channels, with one key for each seed."""
    if not probability:
        return x
    place = torch.arange(x.shape[1] * x.shape[2], dtype=torch.int32, device=x.device).view(x.shape[1:])
    kept = _mix(_mix(place) ^ key[:, None, None]) >= round(probability * 2**32) - 2**31
    return torch.where(kept, x / (1 - probability), 0.0)


def _mix(bits: Tensor) -> Tensor:
    """A hash of 32 bits in which every bit depends on every bit: Wellons' lowbias32."""
    bits = (bits ^ _shifted(bits, 16)) * 0x7FEB352D
    bits = (bits ^ _shifted(bits, 15)) * (0x846CA68B - 2**32)
    return bits ^ _shifted(bits, 16)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift to the right; zeros come in, also for negative numbers."""
    return (bits >> by) & (2 ** (32 - by) - 1)
