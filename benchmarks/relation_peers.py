"""The relations as others compute them, for ``relation.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-5


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def by_logcumsumexp(a: Tensor, b: Tensor, post_norm: bool = True) -> Tensor:
    """The scan as the published code has it, in float32 or float64."""
    wide = a.dtype if a.dtype == torch.float64 else torch.float32
    count = torch.arange(1, a.shape[1] + 1, device=a.device)[:, None]
    y = torch.exp(norm(a.to(wide)) + torch.logcumsumexp(norm(b.to(wide)), 1)) / count
    return (norm(y) if post_norm else y).to(a.dtype)


def by_cumsum(a: Tensor, b: Tensor) -> Tensor:
    """The scan as two factors, in float32 or float64."""
    count = torch.arange(1, a.shape[1] + 1, device=a.device)[:, None]
    wide = a.dtype if a.dtype == torch.float64 else torch.float32
    return norm(norm(a.to(wide)).exp() * norm(b.to(wide)).exp().cumsum(1) / count).to(a.dtype)


def by_pairs(a: Tensor, b: Tensor) -> Tensor:
    """Every pair written out, in float32 or float64."""
    wide = a.dtype if a.dtype == torch.float64 else torch.float32
    x = norm(a.to(wide)[:, :, None] + b.to(wide)[:, None]).exp()
    count = torch.arange(1, a.shape[1] + 1, device=a.device)
    return (x * torch.ones_like(x[..., 0]).tril()[..., None]).sum(2) / count[:, None]


def fla_logcumsumexp(b: Tensor) -> Callable[[], Any]:
    """The kernel alone, without the norms around it, by 64 channels at a time as it takes them."""
    heads = b.float().unflatten(-1, (-1, 64)).transpose(1, 2).contiguous()
    out = torch.empty_like(heads)

    def run():
        from fla.ops.utils.logcumsumexp import logcumsumexp_fwd_kernel

        logcumsumexp_fwd_kernel[(heads.shape[0] * heads.shape[1],)](heads, out, T=heads.shape[2], S=64)

    return run


def fla_simple_gla(a: Tensor, b: Tensor) -> Callable[[], Any]:
    q, k, v = (x.unflatten(-1, (-1, 64)) for x in (a, b, b))
    decay = torch.zeros(q.shape[:3], device=q.device)

    def run():
        from fla.ops.simple_gla import chunk_simple_gla

        return chunk_simple_gla(q, k, v, g=decay)

    return run
