"""Sinusoidal position codes, which are added to an embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids(length: int, dim: int, like: Tensor, start: int = 0) -> Tensor:
    """Sinusoidal position codes (Vaswani et al. 2017, arXiv 1706.03762), (length, dim).

    Args:
        length: Number of positions.
        dim: Width of a code.
        like: A tensor with the dtype and device of the codes.
        start: The first position.
    """
    rate = torch.exp(torch.arange(0, dim, 2, device=like.device) * (-math.log(10_000.0) / dim))
    angle = torch.arange(start, start + length, device=like.device)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[:, :dim].to(like.dtype)
