"""Gate, add, norm and modulation as a PyTorch operator, and the choice of its backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from normplace.ops.backends import BackendChoice, choose_triton, import_backend, on_device_of
from normplace.ops.gate_add_norm import reference
from normplace.ops.gate_add_norm.reference import GateGradMask, GateGrads, GateSpec, GateTensors
from normplace.ops.norm_add_norm.op import KERNEL_DTYPES
from normplace.ops.registration import DifferentiableOp, Tensors

BACKENDS = ("auto", "reference", "triton")
# In wider rows the sums of a program would fill its registers.
MAX_WIDTH = 8192


def choose_backend(device: str, dtypes: tuple[torch.dtype, ...], width: int, requested: str = "auto") -> BackendChoice:
    """The backend that computes a call.

    Args:
        device: Type of the device of the tensors.
        dtypes: Dtypes of the rows that are read and written.
        width: Features of a row.
        requested: One of :data:`BACKENDS`; ``auto`` is Triton where it runs.

    Raises:
        UsageError: If Triton is requested and cannot run.
    """
    if requested == "reference":
        return BackendChoice(requested, "requested")
    unsupported = None
    if any(dtype not in KERNEL_DTYPES for dtype in dtypes):
        unsupported = "the Triton kernels compute in float32 and a tensor is float64"
    elif width > MAX_WIDTH:
        unsupported = f"the sums of rows of {width} features do not fit into the registers of one program"
    return choose_triton(requested, device, unsupported=unsupported)


class GateAddNormOp(DifferentiableOp[GateSpec]):
    """Gate, add, norm and modulation; results are the new stream and the input of the next branch."""

    name = "gate_add_norm"
    inputs = ("x", "f?", *(f"{field}?" for field in GateTensors._fields))
    saved = ("stream", "f", "stats", *GateTensors._fields)
    spec_type = GateSpec
    num_results = 2
    num_outputs = 3
    num_grads = len(GateGradMask._fields)

    def forward(self, tensors: Tensors, spec: GateSpec, *, training: bool = True) -> Any:
        """New stream, input of the next branch and statistics; None for the statistics unless ``training``."""
        x, f, *rest = tensors
        arguments = cast(Tensor, x), f, GateTensors(*rest), spec
        if spec.backend == "reference" or not arguments[0].numel():
            return reference.forward(*arguments)
        return on_device_of(
            arguments[0], import_backend("gate_add_norm", "triton").forward, *arguments, training
        )  # fmt: skip

    def fake_forward(self, tensors: Tensors, spec: GateSpec) -> tuple[Tensor, Tensor, Tensor]:
        """Empty tensors like the results of :meth:`forward`."""
        x = cast(Tensor, tensors[0])
        stats = x.new_empty((x.shape[:-1].numel(), spec.num_statistics), dtype=spec.compute_dtype)
        stream = x.new_empty(x.shape if tensors[1] is not None else 0, dtype=spec.stream_dtype)
        return stream, x.new_empty(x.shape if spec.norm != "none" else 0, dtype=spec.y_dtype), stats

    def save(self, tensors: Tensors, spec: GateSpec, outputs: tuple[Tensor, ...], needs: Sequence[bool]) -> Tensors:
        """The stream if a norm reads it, f if the gradient of the gate needs it, the statistics and the factors."""
        x, f, *rest = tensors
        stream = (x if f is None else outputs[0]) if spec.norm != "none" else None
        return stream, f if GateGradMask(*needs).gate else None, outputs[2], *rest

    def backward(self, grads: Tensors, saved: Tensors, spec: GateSpec, needs: Sequence[bool]) -> GateGrads:
        """The gradients that are needed."""
        d_stream, d_y = grads
        like = cast(Tensor, d_stream if d_stream is not None else d_y)
        stream, f, stats, *rest = saved
        arguments = d_stream, d_y, stream, f, stats, GateTensors(*rest), spec, GateGradMask(*needs)
        if spec.backend == "reference" or not like.numel():
            return reference.backward(*arguments)
        return on_device_of(like, import_backend("gate_add_norm", "triton").backward, *arguments)

    def fake_backward(self, grads: Tensors, saved: Tensors, spec: GateSpec) -> Tensors:
        """Empty tensors like the gradients."""
        like = cast(Tensor, next(grad for grad in grads if grad is not None))
        rows = [like.new_empty(like.shape, dtype=dtype) for dtype in (spec.x_dtype, spec.f_dtype)]
        factors = (None if tensor is None else tensor.new_empty(tensor.shape) for tensor in saved[3:])
        return [*rows, *factors]

    def differentiable(self, tensors: Tensors, spec: GateSpec) -> tuple[Tensor, Tensor]:
        """The reference, whose operations PyTorch differentiates."""
        x, f, *rest = tensors
        return reference.forward(cast(Tensor, x), f, GateTensors(*rest), spec)[:2]

    def differentiable_backward(
        self, grads: Tensors, saved: Tensors, spec: GateSpec, needs: Sequence[bool]
    ) -> GateGrads:
        """The reference with statistics recomputed from the saved tensors, so that they are differentiated too."""
        (d_stream, d_y), (stream, f, _, *rest) = _used(grads, spec), saved
        if d_stream is None and d_y is None:
            return GateGrads()
        return reference.backward(d_stream, d_y, stream, f, None, GateTensors(*rest), spec, GateGradMask(*needs))

    def gradients(
        self, backward: Callable[..., Tensors], grads: Tensors, saved: Tensors, spec: GateSpec, needs: Sequence[bool]
    ) -> Tensors:
        """The gradients, where a gradient that equals another tensor is that tensor."""
        d_stream, d_y = _used(grads, spec)
        if d_stream is None and d_y is None:
            return GateGrads()
        mask = GateGradMask(*needs)
        f_is_dx = mask.f and saved[3] is None and spec.f_dtype == spec.x_dtype
        computed = mask._replace(x=(mask.x or f_is_dx) and d_y is not None, f=mask.f and not f_is_dx)
        if d_y is None:
            computed = computed._replace(scale=False, shift=False, weight=False, bias=False)
        values: Tensors = GateGrads()
        if True in computed:
            values = backward((d_stream, d_y), saved if d_y is not None else (None, *saved[1:]), spec, computed)
        dx, df, *rest = values
        dx = dx if d_y is not None else cast(Tensor, d_stream).to(spec.x_dtype)
        return dx if mask.x else None, dx if f_is_dx else df, *rest


def _used(grads: Tensors, spec: GateSpec) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of results that are not empty."""
    d_stream, d_y = grads
    return d_stream if spec.has_branch else None, d_y if spec.norm != "none" else None


GATE_ADD_NORM = GateAddNormOp()


def apply(x: Tensor, f: Tensor | None, tensors: GateTensors, spec: GateSpec) -> tuple[Tensor, Tensor]:
    """The new stream and the input of the next branch, by the backend of the spec."""
    if spec.backend == "reference" and torch.compiler.is_compiling():
        return reference.forward(x, f, tensors, spec)[:2]  # the compiler fuses its operations
    return cast(tuple[Tensor, Tensor], GATE_ADD_NORM((x, f, *tensors), spec))
