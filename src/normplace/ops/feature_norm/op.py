"""The norm as a PyTorch operator, computed as a boundary without a branch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from normplace.ops.backends import import_backend, on_device_of
from normplace.ops.norm_add_norm import reference
from normplace.ops.norm_add_norm.reference import BoundaryGradMask, BoundarySpec, OptionalTensors
from normplace.ops.registration import DifferentiableOp, Tensors
from normplace.ops.tracing import is_traced


class FeatureNormSpec(NamedTuple):
    """Every argument of a norm that is not a tensor."""

    norm: str
    """``rms`` or ``layer``."""
    eps: float
    unit_offset: bool
    rounding: str
    """One of :data:`normplace.ops.norm_add_norm.reference.ROUNDINGS`."""
    dtype: torch.dtype
    """Of the rows."""
    result_dtype: torch.dtype
    backend: str


def as_boundary(spec: FeatureNormSpec) -> BoundarySpec:
    """The boundary whose next norm is this norm."""
    return _make_boundary(spec) if is_traced() else _cached_boundary(spec)  # a tracer cannot see through a cache


def _make_boundary(spec: FeatureNormSpec) -> BoundarySpec:
    return BoundarySpec(
        "none", spec.norm, 0.0, spec.eps, spec.unit_offset, 1.0, 1.0, 0.0, spec.dtype, spec.dtype, spec.dtype,
        spec.result_dtype, spec.backend, next_rounding=spec.rounding,
    )  # fmt: skip


_cached_boundary = functools.lru_cache(maxsize=1024)(_make_boundary)


def _optional(weight: Tensor | None, bias: Tensor | None) -> OptionalTensors:
    return OptionalTensors(None, None, weight, bias, None, None, None, None)


class FeatureNormOp(DifferentiableOp[FeatureNormSpec]):
    """One norm; the result has the shape of the input."""

    name = "feature_norm"
    inputs = ("x", "weight?", "bias?")
    saved = ("x", "weight", "bias", "stats")
    spec_type = FeatureNormSpec
    num_outputs = 2
    num_grads = 3

    def forward(self, tensors: Tensors, spec: FeatureNormSpec, *, training: bool = True) -> Any:
        """The normalized rows and their statistics; None for the statistics unless ``training``."""
        x, weight, bias = tensors
        rows, boundary = cast(Tensor, x), as_boundary(spec)
        if spec.backend == "reference" or not rows.numel():
            return reference.normalize(rows, _optional(weight, bias), boundary)
        kernels = import_backend("norm_add_norm", "triton")
        return on_device_of(rows, kernels.forward, rows, None, _optional(weight, bias), boundary, training)[1:]

    def fake_forward(self, tensors: Tensors, spec: FeatureNormSpec) -> tuple[Tensor, Tensor]:
        """Empty tensors like the results of :meth:`forward`."""
        x, boundary = cast(Tensor, tensors[0]), as_boundary(spec)
        stats = x.new_empty((x.shape[:-1].numel(), boundary.num_statistics), dtype=boundary.compute_dtype)
        return x.new_empty(x.shape, dtype=spec.result_dtype), stats

    def backward(self, grads: Tensors, saved: Tensors, spec: FeatureNormSpec, needs: Sequence[bool]) -> Tensors:
        """The gradients that are needed."""
        x, weight, bias, stats = saved
        (d_y,), rows = grads, cast(Tensor, x).contiguous()
        mask = BoundaryGradMask(*[False] * len(BoundaryGradMask._fields))
        mask = mask._replace(x=needs[0], in_weight=needs[1], in_bias=needs[2])
        arguments = None, d_y, rows, None, stats, _optional(weight, bias), as_boundary(spec), mask
        if spec.backend == "reference" or not rows.numel():
            values = reference.backward(*arguments)
        else:
            values = on_device_of(rows, import_backend("norm_add_norm", "triton").backward, *arguments)
        return values.x, values.in_weight, values.in_bias

    def fake_backward(self, grads: Tensors, saved: Tensors, spec: FeatureNormSpec) -> Tensors:
        """Empty tensors like the gradients."""
        x, *rest = saved[:3]
        like = cast(Tensor, x)
        return like.new_empty(like.shape), *(None if tensor is None else torch.empty_like(tensor) for tensor in rest)

    def differentiable(self, tensors: Tensors, spec: FeatureNormSpec) -> tuple[Tensor]:
        """The reference, whose operations PyTorch differentiates."""
        x, weight, bias = tensors
        return reference.normalize(cast(Tensor, x), _optional(weight, bias), as_boundary(spec))[:1]


FEATURE_NORM = FeatureNormOp()
