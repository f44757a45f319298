"""The boundary composed of PyTorch's own norms and autograd: the fastest form on a CPU."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from normplace.ops.norm_add_norm.reference import (
    BoundarySpec,
    OptionalTensors,
    apply_dropout,
    branch_multiplier,
    gain_multiplier,
    in_dtype,
    scaled,
)


def forward(x: Tensor, f: Tensor, tensors: OptionalTensors, spec: BoundarySpec) -> tuple[Tensor, Tensor]:
    """The new stream, and the input of the next branch, empty without a next norm."""
    # Scales of rows and dropout are of flat rows, and the results are contiguous; otherwise the norms take any shape.
    shape, needs_rows = x.shape, tensors.out_scale is not None or tensors.in_scale is not None or spec.dropout > 0
    is_flat = needs_rows or not (x.is_contiguous() and f.is_contiguous())
    if is_flat:
        x, f = x.reshape(-1, shape[-1]), f.reshape(-1, shape[-1])
    u = _normed(f, spec.out_norm, tensors.out_weight, tensors.out_bias, spec.out_eps, spec)
    u = apply_dropout(scaled(u, tensors.out_scale), tensors.seed, spec)
    skip = x if spec.skip_factor == 1 else spec.skip_factor * x
    is_unscaled = tensors.branch_scale is None and spec.branch_factor == 1
    stream = skip + (u if is_unscaled else branch_multiplier(tensors, spec, u.dtype) * u)
    del u  # y reuses its memory, which is still in the cache
    if not spec.has_next_norm:
        return stream.reshape(shape), f.new_empty(0)
    y = _normed(stream, spec.next_norm, tensors.in_weight, tensors.in_bias, spec.next_eps, spec)
    y = in_dtype(scaled(y, tensors.in_scale), spec.y_dtype)
    return (stream.reshape(shape), y.reshape(shape)) if is_flat else (stream, y)


def normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, spec: BoundarySpec) -> Tensor:
    """Rows after the next norm of a boundary."""
    return in_dtype(_normed(x, spec.next_norm, weight, bias, spec.next_eps, spec), spec.y_dtype)


def _normed(v: Tensor, kind: str, weight: Tensor | None, bias: Tensor | None, eps: float, spec: BoundarySpec) -> Tensor:
    if kind == "none":
        return v
    gain = gain_multiplier(weight, spec, v.dtype)
    gain = gain if isinstance(gain, Tensor) else None
    bias = None if bias is None else in_dtype(bias, v.dtype)
    if kind == "layer":
        return F.layer_norm(v, v.shape[-1:], gain, bias, eps)
    v = F.rms_norm(v, v.shape[-1:], gain, eps)
    return v if bias is None else v + bias
