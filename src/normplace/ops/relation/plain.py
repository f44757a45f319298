"""What the relations share: how one is described, and the plain norm, without gain or bias, that stands in it.

The norm is ``(x - mean) / sqrt(var + eps)`` with the biased variance. At eps = 0 it is the published
``(x - mean) / (std + 0)``, and of numbers that are exactly equal it is zero, with zero gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.calling import transformed


class Rule(NamedTuple):
    """Which relation."""

    norm: str = "separate"
    """``joint`` (of each pair), ``separate`` (of each row, before they are added) or ``none``."""
    activation: str = "exp"
    post_norm: bool = False
    eps: float = 1e-5
    causal: bool = True
    heads: int = 1
    mean: bool = True


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype everything is computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def exponential(x: Tensor, lower: float = 0.0) -> Tensor:
    """``exp(x) 2^-lower``, by the power of two that PyTorch computes faster than that of e."""
    scaled = x * math.log2(math.e)
    return (scaled.sub_(lower) if lower else scaled).exp2_()


def centre(x: Tensor) -> Tensor:
    """``x`` less its mean over the last axis; exactly zero where all entries are equal."""
    x = x - x[..., :1]
    return x.sub_(x.mean(-1, keepdim=True))


def inverse_root(variance: Tensor) -> Tensor:
    """``1 / sqrt(variance)``, and 0 of 0."""
    return torch.where(variance > 0, variance, torch.inf).rsqrt()


def normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The plain norm over the last axis, and what it multiplied the centred numbers by."""
    x = centre(x)
    if eps > 0:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
        scale = (squares / x.shape[-1] + eps).rsqrt()
        # In place where no derivative needs what it was.
        return (x * scale if x.requires_grad or transformed() else x.mul_(scale)), scale
    # Divided by the largest first: the square of a small number would be lost.
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    scale = inverse_root(x.square().mean(-1, keepdim=True))
    return x * scale, torch.where(largest > 0, scale / largest, 0)


def normalise_backward(grad: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    """The gradient through :func:`normalise`, from what it returned."""
    mean = torch.zeros_like(scale)
    # What is normalized already has mean 0 and scale 1.
    through = torch.ops.aten.native_layer_norm_backward(
        grad.contiguous(), out, out.shape[-1:], mean, mean + 1, None, None, [True, False, False]
    )
    return through[0].mul_(scale)


def weights(mask: Tensor | None, length: int, rule: Rule, like: Tensor) -> Tensor:
    """What the sum of each row is multiplied by, B × T or T: 1 / count or 1, and 0 where the mask is."""
    if mask is None:
        count = torch.arange(1, length + 1, device=like.device) if rule.causal else like.new_full((length,), length)
        return 1 / count.to(like.dtype) if rule.mean else like.new_ones(length)
    if not rule.mean:
        return mask.to(like.dtype)
    count = mask.cumsum(1) if rule.causal else mask.sum(1, keepdim=True)
    return torch.where(mask, 1 / count.clamp(min=1).to(like.dtype), 0)
