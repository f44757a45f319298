"""The relation of every pair in plain PyTorch: what the kernels must equal.

With x_ij = a_i + b_j and w_i = 1 / count of the keys of row i::

    y_i = w_i sum_{j <= i} act(n_ij)        n_ij = norm(x_ij), or x_ij itself

Backward, with p_ij = w_i dy_i act'(n_ij) and s_ij = 1 / sqrt(var x_ij + eps)::

    dx_ij = s_ij (p_ij - mean p_ij - n_ij mean(p_ij n_ij))        da_i = sum_j dx_ij        db_j = sum_i dx_ij

Pairs × channels never exist at once: queries and keys are taken in pieces, and pairs are computed again for the
backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.ops.relation.plain import Rule, exponential, normalise, normalise_backward, wide

ACTIVATIONS = ("exp", "relu", "gelu", "elu")
# Elements of the largest temporary: it stays in the cache of one core.
BUDGET = 1 << 18


def activate(x: Tensor, name: str) -> Tensor:
    """The activation of ``x``."""
    if name == "exp":
        return exponential(x)
    return {"relu": F.relu, "gelu": F.gelu, "elu": F.elu}[name](x)


def slope(x: Tensor, name: str) -> Tensor:
    """The derivative of the activation at ``x``."""
    if name == "exp":
        return exponential(x)
    if name == "relu":
        return (x > 0).to(x.dtype)
    if name == "elu":
        return x.clamp(max=0).exp()
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(x) + x * density


def _pieces(a: Tensor, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Queries and keys of pieces whose pairs fit in the budget."""
    batch, length, width = a.shape
    side = max(1, min(length, math.isqrt(BUDGET // (batch * width))))
    step = max(1, min(length, BUDGET // (batch * width * side)))
    for i in range(0, length, side):
        last = min(i + side, length)
        for j in range(0, last if causal else length, step):
            yield slice(i, last), slice(j, min(j + step, length))


def counted(weight: Tensor, queries: Tensor, keys: Tensor, causal: bool) -> Tensor:
    """B × I × J × 1: the weight of the query where the pair counts, 0 where it does not."""
    row, key = weight[:, queries, None, None], weight[:, None, keys, None]
    counts = key > 0
    if causal:
        counts = counts & (keys[None, :] <= queries[:, None])[None, :, :, None]
    return torch.where(counts, row, 0)


def _pairs(a: Tensor, b: Tensor, i: slice, j: slice, rule: Rule) -> tuple[Tensor, Tensor]:
    """B × I × J × heads × channels: pairs after the norm, and what they were scaled by."""
    x = (a[:, i, None] + b[:, None, j]).unflatten(-1, (rule.heads, -1))
    return normalise(x, rule.eps) if rule.norm == "joint" else (x, torch.ones_like(x[..., :1]))


def prepared(a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in the dtype of the computation, zero where masked, whatever padding holds."""
    a, b = a.to(wide(a.dtype)), b.to(wide(b.dtype))
    if weight.dim() == 2:
        there = weight[..., None] > 0
        a, b = torch.where(there, a, 0), torch.where(there, b, 0)
    return a, b, weight.expand(a.shape[:2])


def forward(a: Tensor, b: Tensor, weight: Tensor, rule: Rule) -> Tensor:
    """The relation of every row, in float32 or float64; a norm after the sum is not part of it."""
    a, b, weight = prepared(a, b, weight)
    y, time = torch.zeros_like(a), torch.arange(a.shape[1], device=a.device)
    for i, j in _pieces(a, rule.causal):
        n, _ = _pairs(a, b, i, j, rule)
        share = counted(weight, time[i], time[j], rule.causal)[..., None]
        y[:, i] += torch.where(share == 0, 0, share * activate(n, rule.activation)).sum(2).flatten(-2)
    return y


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Gradients of a and b, in float32 or float64."""
    a, b, weight = prepared(a, b, weight)
    da, db, time = torch.zeros_like(a), torch.zeros_like(b), torch.arange(a.shape[1], device=a.device)
    grad = grad.to(a.dtype).unflatten(-1, (rule.heads, -1))
    for i, j in _pieces(a, rule.causal):
        n, scale = _pairs(a, b, i, j, rule)
        share = counted(weight, time[i], time[j], rule.causal)[..., None]
        p = torch.where(share == 0, 0, share * grad[:, i, None] * slope(n, rule.activation))
        dx = (normalise_backward(p, n, scale) if rule.norm == "joint" else p).flatten(-2)
        da[:, i] += dx.sum(2)
        db[:, j] += dx.sum(1)
    return da, db
