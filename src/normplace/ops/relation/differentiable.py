"""The relations from differentiable PyTorch operations, for derivatives that the fast paths do not have.

``torch.func`` transforms, forward-mode differentiation and second derivatives use it. The results are those of
:mod:`normplace.ops.relation.scan_reference` and :mod:`normplace.ops.relation.pair_reference`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.ops.relation.pair_reference import activate, counted, prepared
from normplace.ops.relation.plain import Rule, inverse_root, wide
from normplace.ops.relation.scan_reference import LOWEST

# Elements of the pairs of one piece of queries.
BUDGET = 1 << 22


def scan(a: Tensor, b: Tensor, weight: Tensor, rule: Rule) -> Tensor:
    """The exponential relation of every row, in the dtype of a."""
    u, v, weight = prepared(a, b, weight)
    if rule.norm != "none":
        u, v = (norm(x.unflatten(-1, (rule.heads, -1)), rule.eps).flatten(-2) for x in (u, v))
    there = weight[..., None] > 0
    v = torch.where(there, v, LOWEST)
    log_sums = v.logcumsumexp(1) if rule.causal else v.logsumexp(1, keepdim=True)
    exponent = u + log_sums
    weight = weight[..., None]
    if not rule.post_norm:
        return torch.where(there, torch.where(there, exponent, 0).exp() * weight, 0).to(a.dtype)
    # The norm of y is that of y exp(-shift), with eps scaled alike: the shift is a constant.
    exponent = torch.where(there, exponent, 0)
    shift = exponent.detach().amax(-1, keepdim=True)
    z = (exponent - shift).exp() * weight
    z = z - z.mean(-1, keepdim=True)
    eps = rule.eps * torch.exp(-2 * shift) if rule.eps else 0.0
    out = z * inverse_root(z.square().mean(-1, keepdim=True) + eps)
    return torch.where(there, out, 0).to(a.dtype)


def pairs(a: Tensor, b: Tensor, weight: Tensor, rule: Rule) -> Tensor:
    """The relation of every row before its post-norm: in float32 or float64 if there is one, or else as a."""
    dtype = wide(a.dtype) if rule.post_norm else a.dtype
    a, b, weight = prepared(a, b, weight)
    (batch, length, width), time = a.shape, torch.arange(a.shape[1], device=a.device)
    step = max(1, BUDGET // (batch * length * width))
    rows = []
    for first in range(0, length, step):
        queries = time[first : first + step]
        x = (a[:, first : first + step, None] + b[:, None]).unflatten(-1, (rule.heads, -1))
        n = norm(x, rule.eps) if rule.norm == "joint" else x
        activated = n.exp() if rule.activation == "exp" else activate(n, rule.activation)
        share = counted(weight, queries, time, rule.causal)[..., None]
        rows.append(torch.where(share == 0, 0, share * activated).sum(2).flatten(-2))
    return torch.cat(rows, 1).to(dtype)


def norm(x: Tensor, eps: float) -> Tensor:
    """The plain norm over the last axis; 0 with derivative 0 where all entries are equal and eps is 0."""
    x = x - x[..., :1]
    x = x - x.mean(-1, keepdim=True)
    if eps == 0:  # the square of a small number would be lost; the result does not depend on the divisor
        largest = x.detach().abs().amax(-1, keepdim=True)
        x = x / torch.where(largest > 0, largest, 1)
    return x * inverse_root(x.square().mean(-1, keepdim=True) + eps)
