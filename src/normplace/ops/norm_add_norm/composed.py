"""The boundary composed of PyTorch's own norms and autograd: the fastest form on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import has_torch_function

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


def is_plain(x: Tensor, f: Tensor, tensors: OptionalTensors, spec: BoundarySpec) -> bool:
    """Whether nothing has to be converted, scaled or copied, so that :func:`plain_boundary` computes the boundary."""
    present = [tensor for tensor in tensors if tensor is not None]
    dtypes = {spec.stream_dtype, spec.y_dtype, *(tensor.dtype for tensor in (x, f, *present))}
    scales = tensors.branch_scale, tensors.out_scale, tensors.in_scale
    return (
        all(tensor.is_contiguous() for tensor in (x, f, *present))
        and len(dtypes) == 1
        and all(scale is None for scale in scales)
        and spec.skip_factor == spec.branch_factor == 1
        and not spec.dropout
        and not spec.unit_offset
    )


def plain_boundary(spec: BoundarySpec, width: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """:func:`forward` for rows of one width for which :func:`is_plain` is true; called with all tensors in order."""
    normed = _plain_norm(spec.out_norm, width, spec.out_eps)
    next_normed = _plain_norm(spec.next_norm, width, spec.next_eps)

    def boundary(
        x: Tensor,
        f: Tensor,
        out_weight: Tensor | None,
        out_bias: Tensor | None,
        in_weight: Tensor | None,
        in_bias: Tensor | None,
        *missing: None,
    ) -> tuple[Tensor, Tensor]:
        if has_torch_function((x,)):  # a mode sees the calls of PyTorch, and may change dtypes
            return forward(x, f, OptionalTensors(out_weight, out_bias, in_weight, in_bias, *missing), spec)
        stream = x + normed(f, out_weight, out_bias)
        return stream, next_normed(stream, in_weight, in_bias)

    return boundary


def _plain_norm(kind: str, width: int, eps: float) -> Callable[[Tensor, Tensor | None, Tensor | None], Tensor]:
    """A norm of rows of one width, by its operator."""
    shape, layer_norm, rms_norm = (width,), torch.layer_norm, torch.rms_norm

    def rms(v: Tensor, gain: Tensor | None, bias: Tensor | None) -> Tensor:
        v = rms_norm(v, shape, gain, eps)
        return v if bias is None else v + bias

    if kind == "layer":
        return lambda v, gain, bias: layer_norm(v, shape, gain, bias, eps)
    return rms if kind == "rms" else lambda v, gain, bias: v


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
