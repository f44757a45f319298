"""The relations in differentiable PyTorch operations, for derivatives that the fast paths do not have.

``torch.func`` transforms, forward-mode differentiation and second derivatives use it. The results are the same as
those of :mod:`normplace.ops.relation.scan_reference` and :mod:`normplace.ops.relation.pair_reference`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.ops.features import compute_dtype
from normplace.ops.relation.common import RelationSpec, inverse_root
from normplace.ops.relation.pair_reference import activate, masked_inputs, pair_weights
from normplace.ops.relation.scan_reference import LOWEST

# Elements of the pairs that are computed at a time.
BUDGET = 1 << 22
# An exponential of this, times the number of rows, fits into float32.
LARGE = 64.0


def scan(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> Tensor:
    """The exponential relation of every row, in the dtype of a."""
    u, v, weight = masked_inputs(a, b, weight)
    if spec.norm != "none":
        u, v = (norm(x.unflatten(-1, (spec.heads, -1)), spec.eps).flatten(-2) for x in (u, v))
    present = weight[..., None] > 0
    v = torch.where(present, v, LOWEST)
    log_sums = v.logcumsumexp(1) if spec.causal else v.logsumexp(1, keepdim=True)
    exponent = u + log_sums
    weight = weight[..., None]
    if not spec.post_norm:
        # The exponential of a sum may overflow where that of the mean does not.
        large = present & (exponent.detach() > LARGE)
        y = torch.where(present & ~large, exponent, 0).exp() * weight
        mean = torch.where(large, exponent + torch.where(present, weight, 1).log(), 0).exp()
        return torch.where(present, torch.where(large, mean, y), 0).to(a.dtype)
    # The norm of y equals that of y exp(-shift) with eps scaled accordingly, so the shift is a constant.
    exponent = torch.where(present, exponent, 0)
    shift = exponent.detach().amax(-1, keepdim=True)
    z = (exponent - shift).exp() * weight
    z = z - z.mean(-1, keepdim=True)
    eps = spec.eps * torch.exp(-2 * shift) if spec.eps else 0.0
    out = z * inverse_root(z.square().mean(-1, keepdim=True) + eps)
    return torch.where(present, out, 0).to(a.dtype)


def pairs(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> Tensor:
    """The relation of every row without the post-norm; in float32 or float64 if one follows, else in the dtype of a."""
    dtype = compute_dtype(a.dtype) if spec.post_norm else a.dtype
    a, b, weight = masked_inputs(a, b, weight)
    (batch, length, width), time = a.shape, torch.arange(a.shape[1], device=a.device)
    step = max(1, BUDGET // (batch * length * width))
    rows = []
    for first in range(0, length, step):
        queries = time[first : first + step]
        x = (a[:, first : first + step, None] + b[:, None]).unflatten(-1, (spec.heads, -1))
        n = norm(x, spec.eps) if spec.norm == "joint" else x
        activated = n.exp() if spec.activation == "exp" else activate(n, spec.activation)
        share = pair_weights(weight, queries, time, spec.causal)[..., None]
        rows.append(torch.where(share == 0, 0, share * activated).sum(2).flatten(-2))
    return torch.cat(rows, 1).to(dtype)


def norm(x: Tensor, eps: float) -> Tensor:
    """The norm over the last axis; 0 with derivative 0 where all entries are equal and eps is 0."""
    x = x - x[..., :1]
    x = x - x.mean(-1, keepdim=True)
    largest = x.detach().abs().amax(-1, keepdim=True)
    if eps == 0:  # squares of small values would underflow; the result does not depend on the divisor
        x = x / torch.where(largest > 0, largest, 1)
        return x * inverse_root(x.square().mean(-1, keepdim=True))
    # Squares of large values, or powers of them in derivatives, would overflow. A power of two changes no digit.
    shrink = torch.exp2(-largest.log2().floor().clamp(min=0))
    x = x * shrink
    return x * inverse_root(x.square().mean(-1, keepdim=True) + eps * shrink.square())
