"""The arguments of a relation, and its norm without gain or bias.

The norm is ``(x - mean) / sqrt(var + eps)`` with the biased variance. At eps = 0 it is the published
``(x - mean) / (std + 0)``; values that are exactly equal are normalized to zero, with zero gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.tracing import in_transform


class RelationSpec(NamedTuple):
    """Every argument of a relation that is not a tensor."""

    norm: str = "separate"
    """``joint`` (of each pair), ``separate`` (of each row, before the sum) or ``none``."""
    activation: str = "exp"
    post_norm: bool = False
    eps: float = 1e-5
    causal: bool = True
    heads: int = 1
    mean: bool = True
    backend: str = "auto"


class RelationKey(NamedTuple):
    """What decides how the kernels of a relation are compiled and launched."""

    spec: RelationSpec
    shape: tuple[int, ...]
    dtype: torch.dtype
    masked: bool
    device: torch.device

    @classmethod
    def of(cls, a: Tensor, weight: Tensor | None, spec: RelationSpec) -> RelationKey:
        """The key of a relation of these tensors."""
        return cls(spec, a.shape, a.dtype, weight is not None, a.device)


def exponential(x: Tensor, lower: float = 0.0) -> Tensor:
    """``exp(x) 2^-lower``, by ``exp2``, which PyTorch computes faster than ``exp``."""
    scaled = x * math.log2(math.e)
    return (scaled.sub_(lower) if lower else scaled).exp2_()


def centre(x: Tensor) -> Tensor:
    """``x`` minus its mean over the last axis; exactly zero where all entries are equal."""
    x = x - x[..., :1]
    return x.sub_(x.mean(-1, keepdim=True))


def inverse_root(variance: Tensor) -> Tensor:
    """``1 / sqrt(variance)``; 0 for a variance of 0."""
    return torch.where(variance > 0, variance, torch.inf).rsqrt()


def normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm over the last axis, and the scale that it multiplied the centred values by.

    With an eps, values whose squares are too large for their dtype have the norm nan unless it is differentiated.
    """
    x = centre(x)
    if eps > 0:
        if x.requires_grad or in_transform():
            return _differentiable_norm(x, eps)
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
        scale = torch.threshold_((squares / x.shape[-1] + eps).rsqrt(), 0, torch.nan)
        return x.mul_(scale), scale
    # Divide by the largest first, because the squares of small values would underflow.
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    scale = inverse_root(x.square().mean(-1, keepdim=True))
    return x * scale, torch.where(largest > 0, scale / largest, 0)


def _differentiable_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of centred values. Divided by a power of two, which changes no digit, no power of theirs overflows."""
    shrink = torch.exp2(-x.detach().abs().amax(-1, keepdim=True).log2().floor().clamp(min=0))
    squares = torch.linalg.vector_norm(x * shrink, dim=-1, keepdim=True).square()
    scale = (squares / x.shape[-1] + eps * shrink.square()).rsqrt()
    return x * shrink * scale, scale * shrink


def normalise_backward(grad: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    """The gradient through :func:`normalise`, from its results."""
    mean = torch.zeros_like(scale)
    # The normalized values have mean 0 and scale 1.
    through = torch.ops.aten.native_layer_norm_backward(
        grad.contiguous(), out, out.shape[-1:], mean, mean + 1, None, None, [True, False, False]
    )
    return through[0].mul_(scale)


def row_weights(mask: Tensor | None, length: int, spec: RelationSpec, like: Tensor) -> Tensor:
    """The factor of each row's sum, B × T or T: 1 / count or 1, and 0 where the mask is false."""
    if mask is None:
        count = torch.arange(1, length + 1, device=like.device) if spec.causal else like.new_full((length,), length)
        return 1 / count.to(like.dtype) if spec.mean else like.new_ones(length)
    if not spec.mean:
        return mask.to(like.dtype)
    count = mask.cumsum(1) if spec.causal else mask.sum(1, keepdim=True)
    return torch.where(mask, 1 / count.clamp(min=1).to(like.dtype), 0)
