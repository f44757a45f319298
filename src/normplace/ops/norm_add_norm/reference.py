"""The boundary between two residual blocks in plain PyTorch: the definition, the test oracle, and the fallback.

For one row f of the branch's output and one row x of the stream, with ^ for a standardised row:

    u  = s_out (w_out f^ + b_out)            the branch's output, normalized and scaled
    x' = skip x + branch dropout(u)          rounded to the dtype of the stream
    y  = s_in (w_in x'^ + b_in)              the input of the next branch, a function of the rounded x'

A standardised row is ``(v - mean) rstd`` for LayerNorm, ``v rstd`` for RMSNorm, and v itself without a norm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.features import compute_dtype

ROUNDINGS = ("once", "result", "gain", "rows")
"""Where a norm in half precision rounds.

- ``once``: the boundary keeps the result in float32 until the sum or y is rounded.
- ``result``: the norm rounds its result, as a separate kernel does.
- ``gain``: the norm rounds the standardised row and then the product with the gain, as most norms of Hugging Face do.
- ``rows``: the norm rounds the standardised row only, as the same norms do when their gain is float32.
"""


class BoundarySpec(NamedTuple):
    """Every argument of a boundary that is not a tensor."""

    out_norm: str
    """Norm of the branch's output: ``rms``, ``layer`` or ``none``."""
    next_norm: str
    """Norm of the new stream, which the next branch reads."""
    out_eps: float
    next_eps: float
    unit_offset: bool
    skip_factor: float
    branch_factor: float
    """Multiplies the branch if :attr:`OptionalTensors.branch_scale` is None."""
    dropout: float
    x_dtype: torch.dtype
    f_dtype: torch.dtype
    stream_dtype: torch.dtype
    y_dtype: torch.dtype
    """Of the input of the next branch."""
    backend: str
    out_rounding: str = "once"
    """Where the norm of the branch's output rounds to the dtype of f, see :data:`ROUNDINGS`."""
    next_rounding: str = "once"

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return compute_dtype(self.x_dtype, self.f_dtype, self.stream_dtype, self.y_dtype)

    @property
    def has_next_norm(self) -> bool:
        """Whether the new stream is normalized."""
        return self.next_norm != "none"

    @property
    def num_statistics(self) -> int:
        """Statistics kept of each row: two reciprocal deviations, and two means if a norm subtracts one."""
        return 4 if "layer" in (self.out_norm, self.next_norm) else 2


class OptionalTensors(NamedTuple):
    """All tensors apart from the stream and the branch's output."""

    out_weight: Tensor | None
    out_bias: Tensor | None
    in_weight: Tensor | None
    in_bias: Tensor | None
    branch_scale: Tensor | None
    """One number, or one for each channel."""
    out_scale: Tensor | None
    """One number for each row."""
    in_scale: Tensor | None
    seed: Tensor | None
    """Seed of the dropout: one int64."""


class BoundaryGradMask(NamedTuple):
    """Which gradients to compute."""

    x: bool
    f: bool
    out_weight: bool
    out_bias: bool
    in_weight: bool
    in_bias: bool
    branch_scale: bool
    out_scale: bool
    in_scale: bool


class BoundaryGrads(NamedTuple):
    """Gradients; None where not needed."""

    x: Tensor | None = None
    f: Tensor | None = None
    out_weight: Tensor | None = None
    out_bias: Tensor | None = None
    in_weight: Tensor | None = None
    in_bias: Tensor | None = None
    branch_scale: Tensor | None = None
    out_scale: Tensor | None = None
    in_scale: Tensor | None = None


class Standardised(NamedTuple):
    """Standardised rows and the statistics that standardised them, each rows × 1."""

    value: Tensor
    rstd: Tensor | None = None
    mean: Tensor | None = None


def forward(x: Tensor, f: Tensor, tensors: OptionalTensors, spec: BoundarySpec) -> tuple[Tensor, Tensor, Tensor]:
    """The new stream, the input of the next branch (empty without a next norm), and the statistics of the rows."""
    width, dtype = x.shape[-1], spec.compute_dtype
    f_hat = standardise(f.reshape(-1, width).to(dtype), spec.out_norm, spec.out_eps)
    u = _affine(_rounded_rows(f_hat.value, spec.out_rounding, spec.f_dtype), tensors.out_weight, tensors.out_bias, spec)
    u = scaled(rounded(u, spec.f_dtype) if spec.out_rounding in ("result", "gain") else u, tensors.out_scale)
    branch = branch_multiplier(tensors, spec, dtype)
    stream = spec.skip_factor * x.reshape(-1, width).to(dtype) + branch * apply_dropout(u, tensors.seed, spec)
    stream = stream.to(spec.stream_dtype)
    y, stats = normalize(stream, tensors, spec, f_hat)
    return stream.reshape(x.shape), y.reshape(x.shape) if spec.has_next_norm else y.new_empty(0), stats


def normalize(
    x: Tensor, tensors: OptionalTensors, spec: BoundarySpec, f_hat: Standardised | None = None
) -> tuple[Tensor, Tensor]:
    """Rows after the next norm, and the statistics of rows.

    Args:
        x: The rows.
        tensors: Of the boundary.
        spec: Of the boundary.
        f_hat: The standardised output of the branch, if there is a branch.
    """
    dtype, f_hat = spec.compute_dtype, f_hat or Standardised(x)
    rows = x.reshape(-1, x.shape[-1]).to(dtype)
    x_hat = standardise(rows, spec.next_norm, spec.next_eps)
    zeros = rows.new_zeros(len(rows), 1)
    columns = (f_hat.rstd, x_hat.rstd, f_hat.mean, x_hat.mean)[: spec.num_statistics]
    stats = torch.cat([zeros if column is None else column.detach() for column in columns], 1)
    narrower = min(spec.stream_dtype, spec.y_dtype, key=lambda dtype: dtype.itemsize)
    y = _affine(_rounded_rows(x_hat.value, spec.next_rounding, narrower), tensors.in_weight, tensors.in_bias, spec)
    return scaled(y, tensors.in_scale).to(spec.y_dtype).reshape(x.shape), stats


def backward(
    d_stream: Tensor | None,
    d_y: Tensor | None,
    stream: Tensor | None,
    f: Tensor | None,
    stats: Tensor | None,
    tensors: OptionalTensors,
    spec: BoundarySpec,
    needs: BoundaryGradMask,
) -> BoundaryGrads:
    """Gradients, which are differentiable in turn if ``stats`` is None.

    Args:
        d_stream: Gradient of the new stream, if any.
        d_y: Gradient of the input of the next branch, if any.
        stream: The new stream, if a norm reads it.
        f: The branch's output, if a gradient needs it.
        stats: The statistics that the forward pass returned; None to recompute them from ``stream`` and ``f``.
        tensors: The other tensors.
        spec: Everything else.
        needs: Which gradients to compute.
    """
    like = d_stream if d_stream is not None else d_y
    assert like is not None
    shape, width, dtype = like.shape, like.shape[-1], spec.compute_dtype
    total = 0 if d_stream is None else d_stream.reshape(-1, width).to(dtype)
    d_in_weight = d_in_bias = d_in_scale = None
    if d_y is not None:
        assert stream is not None
        x_hat = standardise(stream.reshape(-1, width).to(dtype), spec.next_norm, spec.next_eps, stats, 1)
        d_y = d_y.reshape(-1, width).to(dtype)
        d_in_scale = (d_y * _affine(x_hat.value, tensors.in_weight, tensors.in_bias, spec)).sum(1)
        g = scaled(d_y, tensors.in_scale)
        d_in_weight, d_in_bias = (g * x_hat.value).sum(0), g.sum(0)
        total = total + through_norm(g * gain_multiplier(tensors.in_weight, spec, dtype), x_hat)
    assert isinstance(total, Tensor)
    dx = (spec.skip_factor * total).to(spec.x_dtype).reshape(shape)
    t = apply_dropout(total, tensors.seed, spec)
    g = scaled(t, tensors.out_scale)
    branch, gain = branch_multiplier(tensors, spec, dtype), gain_multiplier(tensors.out_weight, spec, dtype)
    d_out_weight = d_branch = d_out_scale = None
    f_hat = Standardised(g)
    if f is not None:
        f_hat = standardise(f.reshape(-1, width).to(dtype), spec.out_norm, spec.out_eps, stats, 0)
        u = _affine(f_hat.value, tensors.out_weight, tensors.out_bias, spec)
        d_out_scale = (t * branch * u).sum(1)
        d_out_weight = (g * branch * f_hat.value).sum(0)
        d_branch = (g * u).sum(0)
        if tensors.branch_scale is not None and tensors.branch_scale.numel() == 1:
            d_branch = d_branch.sum()
    df = through_norm(g * branch * gain, f_hat).to(spec.f_dtype).reshape(shape)
    values = (dx, df, d_out_weight, (g * branch).sum(0), d_in_weight, d_in_bias, d_branch, d_out_scale, d_in_scale)
    likes = (dx, df, *tensors[:7])
    return BoundaryGrads(
        *(
            value.reshape(like.shape).to(like.dtype) if need and value is not None and like is not None else None
            for value, like, need in zip(values, likes, needs, strict=True)
        )
    )


def dropout_mask(seed: Tensor, rows: int, width: int, dropout: float) -> Tensor:
    """Which elements dropout keeps: a hash of seed, row and column, so that no mask is stored.

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


def apply_dropout(value: Tensor, seed: Tensor | None, spec: BoundarySpec) -> Tensor:
    """Rows with some elements set to zero and the others scaled up."""
    if not spec.dropout:
        return value
    assert seed is not None
    kept = dropout_mask(seed, len(value), value.shape[1], spec.dropout)
    return value * (kept.to(value.dtype) / (1 - spec.dropout))


def standardise(v: Tensor, kind: str, eps: float, stats: Tensor | None = None, which: int = 0) -> Standardised:
    """Standardised rows; ``which`` selects the statistics of the branch's norm (0) or the next norm (1)."""
    if kind == "none":
        return Standardised(v)
    mean = None
    if kind == "layer":
        mean = v.mean(1, keepdim=True) if stats is None else stats[:, 2 + which, None]
        v = v - mean
    if stats is None:
        rstd = (v.square().mean(1, keepdim=True) + eps).rsqrt()
        rstd = torch.threshold(rstd, 0, torch.nan)  # squares that overflow would give rows of zeros
    else:
        rstd = stats[:, which, None]
    return Standardised(v * rstd, rstd, mean)


def through_norm(g: Tensor, hat: Standardised) -> Tensor:
    """The gradient of rows, from that of the standardised rows."""
    if hat.rstd is None:
        return g
    centred = g - hat.value * (g * hat.value).mean(1, keepdim=True)
    return hat.rstd * (centred if hat.mean is None else centred - g.mean(1, keepdim=True))


def _affine(v: Tensor, weight: Tensor | None, bias: Tensor | None, spec: BoundarySpec) -> Tensor:
    v = v * gain_multiplier(weight, spec, v.dtype)
    return v if bias is None else v + bias.to(v.dtype)


def _rounded_rows(v: Tensor, rounding: str, dtype: torch.dtype) -> Tensor:
    """Standardised rows, rounded if the norm rounds them before its gain."""
    return rounded(v, dtype) if rounding in ("gain", "rows") else v


def rounded(v: Tensor, dtype: torch.dtype) -> Tensor:
    """``v`` rounded to a dtype."""
    return v.to(dtype).to(v.dtype)


def gain_multiplier(weight: Tensor | None, spec: BoundarySpec, dtype: torch.dtype) -> Tensor | float:
    """The multiplier of a standardised row."""
    if weight is None:
        return 1.0
    return in_dtype(weight, dtype) + 1 if spec.unit_offset else in_dtype(weight, dtype)


def in_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a dtype, without a call if it has that dtype."""
    return value if value.dtype == dtype else value.to(dtype)


def branch_multiplier(tensors: OptionalTensors, spec: BoundarySpec, dtype: torch.dtype) -> Tensor | float:
    """The multiplier of the branch."""
    return spec.branch_factor if tensors.branch_scale is None else tensors.branch_scale.to(dtype)


def scaled(v: Tensor, scale: Tensor | None) -> Tensor:
    """Rows times their scale, if any."""
    return v if scale is None else v * scale.to(v.dtype)[:, None]
