"""Gate, add, norm and modulation in plain PyTorch: the definition, the test oracle, and the fallback.

For one row f of the branch's output and one row x of the stream, with ^ for a standardised row and the factors of the
sample to which the row belongs:

    x' = x + gate f                          rounded to the dtype of the stream
    y  = (1 + scale) (w x'^ + b) + shift     a function of the rounded x'

Standardised rows are defined in :mod:`normplace.ops.norm_add_norm.reference`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.features import compute_dtype
from normplace.ops.norm_add_norm.reference import rounded, standardise, through_norm


class GateSpec(NamedTuple):
    """Every argument that is not a tensor."""

    norm: str
    """``rms``, ``layer`` or ``none``."""
    eps: float
    x_dtype: torch.dtype
    f_dtype: torch.dtype
    """That of x without a branch."""
    stream_dtype: torch.dtype
    y_dtype: torch.dtype
    has_branch: bool
    rounding: str
    """``once``, ``result`` if every operator rounds its result, ``gain`` if the norm also rounds before its gain."""
    backend: str

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return compute_dtype(self.x_dtype, self.f_dtype, self.stream_dtype, self.y_dtype)

    @property
    def num_statistics(self) -> int:
        """Columns of the statistics, in the order of the boundary; those of a norm of the branch are unused."""
        return 4 if self.norm == "layer" else 2


class GateTensors(NamedTuple):
    """All tensors apart from the stream and the branch's output."""

    gate: Tensor | None
    """Samples × features, as the next two."""
    scale: Tensor | None
    shift: Tensor | None
    weight: Tensor | None
    """One number for each feature, as the bias."""
    bias: Tensor | None

    @property
    def samples(self) -> int:
        """The number of samples; consecutive rows belong to one."""
        return next((factor.shape[0] for factor in self[:3] if factor is not None), 1)


class GateGradMask(NamedTuple):
    """Which gradients to compute."""

    x: bool
    f: bool
    gate: bool
    scale: bool
    shift: bool
    weight: bool
    bias: bool


class GateGrads(NamedTuple):
    """Gradients; None where not needed."""

    x: Tensor | None = None
    f: Tensor | None = None
    gate: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def forward(x: Tensor, f: Tensor | None, tensors: GateTensors, spec: GateSpec) -> tuple[Tensor, Tensor, Tensor]:
    """The new stream (empty without a branch), y (empty without a norm), and the statistics of the rows."""
    width, dtype = x.shape[-1], spec.compute_dtype
    stream = x.reshape(-1, width)
    if f is not None:
        u = f.reshape(-1, width).to(dtype)
        if tensors.gate is not None:
            u = u * _per_row(tensors.gate, u)
            u = _step(u, spec, f.dtype, tensors.gate.dtype)
        stream = (stream.to(dtype) + u).to(spec.stream_dtype)
    hat = standardise(stream.to(dtype), spec.norm, spec.eps)
    zeros = hat.value.new_zeros(len(stream), 1)
    columns = (None, hat.rstd, None, hat.mean)[: spec.num_statistics]
    stats = torch.cat([zeros if column is None else column.detach() for column in columns], 1)
    y = x.new_empty(0, dtype=spec.y_dtype)
    if spec.norm != "none":
        y = _modulate(hat.value, stream.dtype, tensors, spec).to(spec.y_dtype).reshape(x.shape)
    return x.new_empty(0, dtype=spec.stream_dtype) if f is None else stream.reshape(x.shape), y, stats


def _modulate(hat: Tensor, dtype: torch.dtype, tensors: GateTensors, spec: GateSpec) -> Tensor:
    """Standardised rows of a stream of ``dtype`` after gain, bias, scale and shift."""
    n = rounded(hat, dtype) if spec.rounding == "gain" else hat
    n = _step(_affine(n, tensors), spec, dtype)
    if tensors.scale is not None:
        factor = _step(1 + _per_row(tensors.scale, n), spec, tensors.scale.dtype)
        n = _step(n * factor, spec, dtype, tensors.scale.dtype)
    return n if tensors.shift is None else n + _per_row(tensors.shift, n)


def backward(
    d_stream: Tensor | None,
    d_y: Tensor | None,
    stream: Tensor | None,
    f: Tensor | None,
    stats: Tensor | None,
    tensors: GateTensors,
    spec: GateSpec,
    needs: GateGradMask,
) -> GateGrads:
    """Gradients, which are differentiable in turn if ``stats`` is None.

    Args:
        d_stream: Gradient of the new stream, if any.
        d_y: Gradient of the input of the next branch, if any.
        stream: The new stream, if a norm reads it.
        f: The branch's output, if the gradient of the gate needs it.
        stats: The statistics that the forward pass returned; None to recompute them from ``stream``.
        tensors: The other tensors.
        spec: Everything else.
        needs: Which gradients to compute.
    """
    like = d_stream if d_stream is not None else d_y
    assert like is not None
    shape, width, dtype = like.shape, like.shape[-1], spec.compute_dtype
    total = 0 if d_stream is None else d_stream.reshape(-1, width).to(dtype)
    d_gate = d_scale = d_shift = d_weight = d_bias = None
    if d_y is not None:
        assert stream is not None
        hat = standardise(stream.reshape(-1, width).to(dtype), spec.norm, spec.eps, stats, 1)
        g = d_y.reshape(-1, width).to(dtype)
        d_shift, d_scale = _per_sample(g, tensors), _per_sample(g * _affine(hat.value, tensors), tensors)
        g = g if tensors.scale is None else g * (1 + _per_row(tensors.scale, g))
        d_weight, d_bias = (g * hat.value).sum(0), g.sum(0)
        total = total + through_norm(g if tensors.weight is None else g * tensors.weight.to(dtype), hat)
    assert isinstance(total, Tensor)
    df = total if tensors.gate is None else total * _per_row(tensors.gate, total)
    if f is not None:
        d_gate = _per_sample(total * f.reshape(-1, width).to(dtype), tensors)
    dx, df = total.to(spec.x_dtype).reshape(shape), df.to(spec.f_dtype).reshape(shape)
    values = (dx, df, d_gate, d_scale, d_shift, d_weight, d_bias)
    return GateGrads(
        *(
            value.to(like.dtype) if need and value is not None and like is not None else None
            for value, like, need in zip(values, (dx, df, *tensors), needs, strict=True)
        )
    )


def _per_row(factor: Tensor, rows: Tensor) -> Tensor:
    """The factors of each row, from those of each sample."""
    samples, width = factor.shape
    count = len(rows) // max(samples, 1)
    return factor.to(rows.dtype)[:, None].expand(samples, count, width).reshape(rows.shape)


def _per_sample(rows: Tensor, tensors: GateTensors) -> Tensor:
    """Sums over the rows of each sample."""
    samples = tensors.samples
    return rows.reshape(samples, len(rows) // max(samples, 1), rows.shape[1]).sum(1)


def _affine(v: Tensor, tensors: GateTensors) -> Tensor:
    v = v if tensors.weight is None else v * tensors.weight.to(v.dtype)
    return v if tensors.bias is None else v + tensors.bias.to(v.dtype)


def _step(v: Tensor, spec: GateSpec, *dtypes: torch.dtype) -> Tensor:
    """The result of one operator on tensors of these dtypes, rounded as PyTorch's own operator does."""
    if spec.rounding == "once":
        return v
    return rounded(v, dtypes[0] if len(dtypes) == 1 else torch.promote_types(*dtypes))
