"""The boundary from PyTorch's own norms and its autograd: the fastest way on a CPU, where there is no pass to save."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from normplace.ops.norm_add_norm.reference import Given, Rule, branch_factor, dropped, gain_factor, scaled


def forward(x: Tensor, f: Tensor, given: Given, rule: Rule) -> tuple[Tensor, Tensor]:
    """The stream, and what the next branch reads, empty without an inner norm."""
    width = x.shape[-1]
    u = _normed(f.reshape(-1, width), rule.out_norm, given.out_weight, given.out_bias, rule.out_eps, rule)
    u = dropped(scaled(u, given.out_scale), given.seed, rule)
    x_rows = x.reshape(-1, width)
    skip = x_rows if rule.skip == 1 else rule.skip * x_rows
    stream = skip + (u if given.branch is None and rule.branch == 1 else branch_factor(given, rule, u.dtype) * u)
    del u  # its memory, still in the cache, serves for y
    if rule.in_norm == "none":
        return stream.reshape(x.shape), f.new_empty(0)
    y = _normed(stream, rule.in_norm, given.in_weight, given.in_bias, rule.in_eps, rule)
    return stream.reshape(x.shape), scaled(y, given.in_scale).reshape(x.shape)


def _normed(v: Tensor, kind: str, weight: Tensor | None, bias: Tensor | None, eps: float, rule: Rule) -> Tensor:
    if kind == "none":
        return v
    factor = gain_factor(weight, rule, v.dtype)
    factor = factor if isinstance(factor, Tensor) else None
    bias = None if bias is None else bias.to(v.dtype)
    if kind == "layer":
        return F.layer_norm(v, v.shape[-1:], factor, bias, eps)
    v = F.rms_norm(v, v.shape[-1:], factor, eps)
    return v if bias is None else v + bias
