"""The boundary between two residual blocks in plain PyTorch: what the kernels must equal, and how gradients are made.

Written for one row f of the branch and one row x of the stream, with ^ for a standardised row:

    u  = s_out (w_out f^ + b_out)            the branch's output, normalized and scaled
    x' = skip x + branch dropout(u)          rounded to the dtype of the stream
    y  = s_in (w_in x'^ + b_in)              what the next branch reads, a function of x' as it is stored

A standardised row is ``(v - mean) rstd`` for LayerNorm, ``v rstd`` for RMSNorm and v itself where there is no norm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rule(NamedTuple):
    """Everything about the boundary that is not a tensor."""

    out_norm: str
    """``rms``, ``layer`` or ``none``."""
    in_norm: str
    out_eps: float
    in_eps: float
    unit_offset: bool
    skip: float
    branch: float
    """Multiplies the branch where no tensor does."""
    dropout: float
    x_dtype: torch.dtype
    f_dtype: torch.dtype
    stream_dtype: torch.dtype
    backend: str

    @property
    def wide(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        doubles = torch.float64 in (self.x_dtype, self.f_dtype, self.stream_dtype)
        return torch.float64 if doubles else torch.float32

    @property
    def num_statistics(self) -> int:
        """How many numbers of each row are kept: two reciprocal deviations, and two means if a norm subtracts one."""
        return 4 if "layer" in (self.out_norm, self.in_norm) else 2


class Given(NamedTuple):
    """The tensors that are neither the stream nor the branch's output; each may be missing."""

    out_weight: Tensor | None
    out_bias: Tensor | None
    in_weight: Tensor | None
    in_bias: Tensor | None
    branch: Tensor | None
    """One number, or one for each channel."""
    out_scale: Tensor | None
    """One number for each row."""
    in_scale: Tensor | None
    seed: Tensor | None
    """Of the dropout: one int64."""


class Needs(NamedTuple):
    """Which gradients to compute."""

    x: bool
    f: bool
    out_weight: bool
    out_bias: bool
    in_weight: bool
    in_bias: bool
    branch: bool
    out_scale: bool
    in_scale: bool


class Grads(NamedTuple):
    """Gradients; None where not needed."""

    x: Tensor | None
    f: Tensor | None
    out_weight: Tensor | None
    out_bias: Tensor | None
    in_weight: Tensor | None
    in_bias: Tensor | None
    branch: Tensor | None
    out_scale: Tensor | None
    in_scale: Tensor | None


class Standardised(NamedTuple):
    """A tensor of standardised rows and the statistics it was made with, each rows × 1."""

    value: Tensor
    rstd: Tensor | None = None
    mean: Tensor | None = None


def forward(x: Tensor, f: Tensor, given: Given, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """The stream, what the next branch reads (empty without an inner norm), and the statistics of the rows."""
    width, wide = x.shape[-1], rule.wide
    f_hat = _standardise(f.reshape(-1, width).to(wide), rule.out_norm, rule.out_eps)
    u = scaled(_affine(f_hat.value, given.out_weight, given.out_bias, rule), given.out_scale)
    stream = rule.skip * x.reshape(-1, width).to(wide) + branch_factor(given, rule, wide) * dropped(u, given.seed, rule)
    stream = stream.to(rule.stream_dtype)
    x_hat = _standardise(stream.to(wide), rule.in_norm, rule.in_eps)
    none = stream.new_zeros(len(stream), 1, dtype=wide)
    columns = (f_hat.rstd, x_hat.rstd, f_hat.mean, x_hat.mean)[: rule.num_statistics]
    stats = torch.cat([none if column is None else column.detach() for column in columns], 1)
    if rule.in_norm == "none":
        return stream.reshape(x.shape), f.new_empty(0), stats
    y = scaled(_affine(x_hat.value, given.in_weight, given.in_bias, rule), given.in_scale)
    return stream.reshape(x.shape), y.to(rule.f_dtype).reshape(x.shape), stats


def backward(
    d_stream: Tensor | None,
    d_y: Tensor | None,
    stream: Tensor | None,
    f: Tensor | None,
    stats: Tensor | None,
    given: Given,
    rule: Rule,
    needs: Needs,
) -> Grads:
    """Gradients, differentiable themselves where the statistics are computed anew.

    Args:
        d_stream: Gradient of the stream, where there is one.
        d_y: Gradient of what the next branch reads, where there is one.
        stream: The stream that the forward pass returned, if a norm reads it.
        f: What the branch returned, if a gradient asks for it.
        stats: The statistics that the forward pass returned; None to compute them from ``stream`` and ``f``.
        given: The other tensors.
        rule: Everything else.
        needs: Which gradients to compute.
    """
    like = d_stream if d_stream is not None else d_y
    assert like is not None
    shape, width, wide = like.shape, like.shape[-1], rule.wide
    total = 0 if d_stream is None else d_stream.reshape(-1, width).to(wide)
    d_in_weight = d_in_bias = d_in_scale = None
    if d_y is not None:
        assert stream is not None
        x_hat = _standardise(stream.reshape(-1, width).to(wide), rule.in_norm, rule.in_eps, stats, 1)
        d_y = d_y.reshape(-1, width).to(wide)
        d_in_scale = (d_y * _affine(x_hat.value, given.in_weight, given.in_bias, rule)).sum(1)
        g = scaled(d_y, given.in_scale)
        d_in_weight, d_in_bias = (g * x_hat.value).sum(0), g.sum(0)
        total = total + _through(g * gain_factor(given.in_weight, rule, wide), x_hat)
    assert isinstance(total, Tensor)
    dx = (rule.skip * total).to(rule.x_dtype).reshape(shape)
    t = dropped(total, given.seed, rule)
    g = scaled(t, given.out_scale)
    branch, gain = branch_factor(given, rule, wide), gain_factor(given.out_weight, rule, wide)
    d_out_weight = d_branch = d_out_scale = None
    f_hat = Standardised(g)
    if f is not None:
        f_hat = _standardise(f.reshape(-1, width).to(wide), rule.out_norm, rule.out_eps, stats, 0)
        u = _affine(f_hat.value, given.out_weight, given.out_bias, rule)
        d_out_scale = (t * branch * u).sum(1)
        d_out_weight = (g * branch * f_hat.value).sum(0)
        d_branch = (g * u).sum(0)
        if given.branch is not None and given.branch.numel() == 1:
            d_branch = d_branch.sum()
    df = _through(g * branch * gain, f_hat).to(rule.f_dtype).reshape(shape)
    found = (dx, df, d_out_weight, (g * branch).sum(0), d_in_weight, d_in_bias, d_branch, d_out_scale, d_in_scale)
    likes = (dx, df, *given[:7])
    return Grads(
        *(
            value.reshape(like.shape).to(like.dtype) if need and value is not None and like is not None else None
            for value, like, need in zip(found, likes, needs, strict=True)
        )
    )


def keeps(seed: Tensor, rows: int, width: int, dropout: float) -> Tensor:
    """Which elements dropout leaves: a hash of seed, row and column, so that nothing is stored and any order will do.

    The 32-bit mixing function is "lowbias32" of Wellons' hash-prospector (public domain).
    """
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    row = torch.arange(rows, device=seed.device)[:, None]
    first, second = _mix(row ^ _mix(low)), _mix(row ^ _mix(high ^ 0x9E3779B9))
    bits = _mix((_mix(torch.arange(width, device=seed.device) ^ first) + second) & 0xFFFFFFFF)
    return (bits >> 8).float() * 2**-24 >= torch.tensor(dropout, dtype=torch.float32, device=seed.device)


def _mix(h: Tensor) -> Tensor:
    h = ((h ^ (h >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    h = ((h ^ (h >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return h ^ (h >> 16)


def dropped(value: Tensor, seed: Tensor | None, rule: Rule) -> Tensor:
    """Rows with elements dropped and the others scaled up."""
    if not rule.dropout:
        return value
    assert seed is not None
    kept = keeps(seed, len(value), value.shape[1], rule.dropout)
    return value * (kept.to(value.dtype) / (1 - rule.dropout))


def _standardise(v: Tensor, kind: str, eps: float, stats: Tensor | None = None, which: int = 0) -> Standardised:
    """Rows less their mean, over their deviation; ``which`` is 0 for the branch's norm and 1 for the stream's."""
    if kind == "none":
        return Standardised(v)
    mean = None
    if kind == "layer":
        mean = v.mean(1, keepdim=True) if stats is None else stats[:, 2 + which, None]
        v = v - mean
    rstd = (v.square().mean(1, keepdim=True) + eps).rsqrt() if stats is None else stats[:, which, None]
    return Standardised(v * rstd, rstd, mean)


def _through(g: Tensor, hat: Standardised) -> Tensor:
    """The gradient of what was standardised, from that of the standardised rows."""
    if hat.rstd is None:
        return g
    moved = g - hat.value * (g * hat.value).mean(1, keepdim=True)
    return hat.rstd * (moved if hat.mean is None else moved - g.mean(1, keepdim=True))


def _affine(v: Tensor, weight: Tensor | None, bias: Tensor | None, rule: Rule) -> Tensor:
    v = v * gain_factor(weight, rule, v.dtype)
    return v if bias is None else v + bias.to(v.dtype)


def gain_factor(weight: Tensor | None, rule: Rule, dtype: torch.dtype) -> Tensor | float:
    """What multiplies a standardised row."""
    return 1.0 if weight is None else weight.to(dtype) + 1 if rule.unit_offset else weight.to(dtype)


def branch_factor(given: Given, rule: Rule, dtype: torch.dtype) -> Tensor | float:
    """What multiplies the branch."""
    return rule.branch if given.branch is None else given.branch.to(dtype)


def scaled(v: Tensor, scale: Tensor | None) -> Tensor:
    """Rows times their scale, if they have one."""
    return v if scale is None else v * scale.to(v.dtype)[:, None]
