"""The pairwise relation in plain PyTorch: the definition, the test oracle, and the fallback.

With x_ij = a_i + b_j and w_i = 1 / number of keys of row i::

    y_i = w_i sum_{j <= i} act(n_ij)        n_ij = norm(x_ij), or x_ij itself

Backward, with p_ij = w_i dy_i act'(n_ij) and s_ij = 1 / sqrt(var x_ij + eps)::

    dx_ij = s_ij (p_ij - mean p_ij - n_ij mean(p_ij n_ij))        da_i = sum_j dx_ij        db_j = sum_i dx_ij

No temporary has the size pairs × channels: queries and keys are processed in chunks, and the backward pass recomputes
the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.ops.relation.common import RelationSpec, compute_dtype, exponential, normalise, normalise_backward

ACTIVATIONS = ("exp", "relu", "gelu", "elu")
# Elements of the largest temporary, so that it stays in the cache of one core.
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


def _chunks(a: Tensor, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Queries and keys of chunks whose pairs fit in the budget."""
    batch, length, width = a.shape
    side = max(1, min(length, math.isqrt(BUDGET // (batch * width))))
    step = max(1, min(length, BUDGET // (batch * width * side)))
    for i in range(0, length, side):
        last = min(i + side, length)
        for j in range(0, last if causal else length, step):
            yield slice(i, last), slice(j, min(j + step, length))


def pair_weights(weight: Tensor, queries: Tensor, keys: Tensor, causal: bool) -> Tensor:
    """B × I × J × 1: the weight of the query if the pair is summed, else 0."""
    row, key = weight[:, queries, None, None], weight[:, None, keys, None]
    counts = key > 0
    if causal:
        counts = counts & (keys[None, :] <= queries[:, None])[None, :, :, None]
    return torch.where(counts, row, 0)


def _pairs(a: Tensor, b: Tensor, i: slice, j: slice, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """B × I × J × heads × channels: normalized pairs, and the scales of their norms."""
    x = (a[:, i, None] + b[:, None, j]).unflatten(-1, (spec.heads, -1))
    return normalise(x, spec.eps) if spec.norm == "joint" else (x, torch.ones_like(x[..., :1]))


def masked_inputs(a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in the dtype of the arithmetic, with zeros in masked rows."""
    a, b = a.to(compute_dtype(a.dtype)), b.to(compute_dtype(b.dtype))
    if weight.dim() == 2:
        present = weight[..., None] > 0
        a, b = torch.where(present, a, 0), torch.where(present, b, 0)
    return a, b, weight.expand(a.shape[:2])


def forward(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> Tensor:
    """The relation of every row, in float32 or float64, without the post-norm."""
    a, b, weight = masked_inputs(a, b, weight)
    y, time = torch.zeros_like(a), torch.arange(a.shape[1], device=a.device)
    for i, j in _chunks(a, spec.causal):
        n, _ = _pairs(a, b, i, j, spec)
        share = pair_weights(weight, time[i], time[j], spec.causal)[..., None]
        y[:, i] += torch.where(share == 0, 0, share * activate(n, spec.activation)).sum(2).flatten(-2)
    return y


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """Gradients of a and b, in float32 or float64."""
    a, b, weight = masked_inputs(a, b, weight)
    da, db, time = torch.zeros_like(a), torch.zeros_like(b), torch.arange(a.shape[1], device=a.device)
    grad = grad.to(a.dtype).unflatten(-1, (spec.heads, -1))
    for i, j in _chunks(a, spec.causal):
        n, scale = _pairs(a, b, i, j, spec)
        share = pair_weights(weight, time[i], time[j], spec.causal)[..., None]
        p = torch.where(share == 0, 0, share * grad[:, i, None] * slope(n, spec.activation))
        dx = (normalise_backward(p, n, scale) if spec.norm == "joint" else p).flatten(-2)
        da[:, i] += dx.sum(2)
        db[:, j] += dx.sum(1)
    return da, db
