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
    scaled,
)


def forward(x: Tensor, f: Tensor, tensors: OptionalTensors, spec: BoundarySpec) -> tuple[Tensor, Tensor]:
    """The new stream, and the input of the next branch, empty without a next norm."""
    width = x.shape[-1]
    u = _normed(f.reshape(-1, width), spec.out_norm, tensors.out_weight, tensors.out_bias, spec.out_eps, spec)
    u = apply_dropout(scaled(u, tensors.out_scale), tensors.seed, spec)
    x_rows = x.reshape(-1, width)
    skip = x_rows if spec.skip_factor == 1 else spec.skip_factor * x_rows
    is_unscaled = tensors.branch_scale is None and spec.branch_factor == 1
    stream = skip + (u if is_unscaled else branch_multiplier(tensors, spec, u.dtype) * u)
    del u  # y reuses its memory, which is still in the cache
    if not spec.has_next_norm:
        return stream.reshape(x.shape), f.new_empty(0)
    y = _normed(stream, spec.next_norm, tensors.in_weight, tensors.in_bias, spec.next_eps, spec)
    return stream.reshape(x.shape), scaled(y, tensors.in_scale).to(spec.y_dtype).reshape(x.shape)


def normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, spec: BoundarySpec) -> Tensor:
    """Rows after the next norm of a boundary."""
    return _normed(x, spec.next_norm, weight, bias, spec.next_eps, spec).to(spec.y_dtype)


def _normed(v: Tensor, kind: str, weight: Tensor | None, bias: Tensor | None, eps: float, spec: BoundarySpec) -> Tensor:
    if kind == "none":
        return v
    gain = gain_multiplier(weight, spec, v.dtype)
    gain = gain if isinstance(gain, Tensor) else None
    bias = None if bias is None else bias.to(v.dtype)
    if kind == "layer":
        return F.layer_norm(v, v.shape[-1:], gain, bias, eps)
    v = F.rms_norm(v, v.shape[-1:], gain, eps)
    return v if bias is None else v + bias
