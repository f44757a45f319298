"""The boundary as a PyTorch operator, and the choice of its backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from normplace.ops.backends import BackendChoice, choose_triton, import_backend, on_device_of
from normplace.ops.norm_add_norm import composed, reference
from normplace.ops.norm_add_norm.reference import BoundaryGradMask, BoundaryGrads, BoundarySpec, OptionalTensors
from normplace.ops.registration import DifferentiableOp, Tensors
from normplace.ops.tracing import any_negative, any_requires_grad

BACKENDS = ("auto", "composed", "reference", "triton")
# Wider rows do not fit into the registers of one program.
MAX_WIDTH = 16384
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Positions among the gradients.
BRANCH_SCALE, OUT_SCALE = (BoundaryGradMask._fields.index(name) for name in ("branch_scale", "out_scale"))


def choose_backend(device: str, dtypes: tuple[torch.dtype, ...], width: int, requested: str = "auto") -> BackendChoice:
    """The backend that computes a boundary.

    Args:
        device: Type of the device of the tensors.
        dtypes: Dtypes of the stream, the branch's output, the new stream and the input of the next branch.
        width: Features of a row.
        requested: One of :data:`BACKENDS`; ``auto`` is Triton where it runs, otherwise the fastest alternative.

    Raises:
        UsageError: If Triton is requested and cannot run.
    """
    if requested in ("composed", "reference"):
        return BackendChoice(requested, "requested")
    unsupported = None
    if any(dtype not in KERNEL_DTYPES for dtype in dtypes):
        unsupported = "the Triton kernels compute in float32 and a tensor is float64"
    elif width > MAX_WIDTH:
        unsupported = f"rows of {width} features do not fit into the registers of one program ({MAX_WIDTH} do)"
    # In half precision PyTorch's norms round intermediate results that the boundary keeps in float32.
    one_full_precision = len(set(dtypes)) == 1 and dtypes[0] in (torch.float32, torch.float64)
    fallback = "composed" if device == "cpu" and one_full_precision else "reference"
    return choose_triton(requested, device, unsupported=unsupported, fallback=fallback)


class GradPlan(NamedTuple):
    """Which gradients are computed, and which reuse another tensor."""

    computed: BoundaryGradMask
    x_is_d_stream: bool
    """The gradient of x is the incoming gradient of the stream."""
    f_is_dx: bool
    """The gradient of f is the gradient of x."""


@functools.lru_cache(maxsize=1024)
def _grad_plan(spec: BoundarySpec, wanted: Sequence[bool], is_plain_add: bool, has_d_y: bool) -> GradPlan:
    """Plan the gradients.

    Args:
        spec: Of the boundary.
        wanted: In the order of :class:`BoundaryGradMask`.
        is_plain_add: Whether no tensor changes the branch before the add.
        has_d_y: Whether there is a gradient of the next branch's input.
    """
    needs = BoundaryGradMask(*wanted)
    x_is_d_stream = not has_d_y and spec.skip_factor == 1
    f_is_dx = (
        is_plain_add
        and spec.out_norm == "none"
        and not spec.dropout
        and spec.branch_factor == spec.skip_factor
        and needs.f
        and spec.f_dtype == spec.x_dtype
    )
    computed = needs._replace(
        x=(needs.x or f_is_dx) and not x_is_d_stream,
        f=needs.f and not f_is_dx,
        in_weight=needs.in_weight and has_d_y,
        in_bias=needs.in_bias and has_d_y,
        in_scale=needs.in_scale and has_d_y,
    )
    return GradPlan(computed, x_is_d_stream, f_is_dx)


class BoundaryOp(DifferentiableOp[BoundarySpec]):
    """Norm, add and norm; results are the new stream and the input of the next branch."""

    name = "norm_add_norm"
    inputs = ("x", "f", *(f"{field}?" for field in OptionalTensors._fields))
    saved = ("stream", "f", "stats", *OptionalTensors._fields)
    spec_type = BoundarySpec
    num_results = 2
    num_outputs = 3
    num_grads = len(BoundaryGradMask._fields)

    def forward(self, tensors: Tensors, spec: BoundarySpec, *, training: bool = True) -> Any:
        """New stream, input of the next branch and statistics; None for the statistics unless ``training``."""
        x, f = cast(tuple[Tensor, Tensor], tensors[:2])
        return _forward(x, f, OptionalTensors(*tensors[2:]), spec, training)

    def fake_forward(self, tensors: Tensors, spec: BoundarySpec) -> tuple[Tensor, Tensor, Tensor]:
        """Empty tensors like the results of :meth:`forward`."""
        x, f = cast(tuple[Tensor, Tensor], tensors[:2])
        stats = x.new_empty((x.shape[:-1].numel(), spec.num_statistics), dtype=spec.compute_dtype)
        y = f.new_empty(f.shape if spec.has_next_norm else 0, dtype=spec.y_dtype)
        return x.new_empty(x.shape, dtype=spec.stream_dtype), y, stats

    def save(self, tensors: Tensors, spec: BoundarySpec, outputs: tuple[Tensor, ...], needs: Sequence[bool]) -> Tensors:
        """The stream if a norm reads it, f if a gradient needs it, the statistics and the optional tensors."""
        reads_f = spec.out_norm != "none" or needs[BRANCH_SCALE] or needs[OUT_SCALE]
        return outputs[0] if spec.has_next_norm else None, tensors[1] if reads_f else None, outputs[2], *tensors[2:]

    def backward(self, grads: Tensors, saved: Tensors, spec: BoundarySpec, needs: Sequence[bool]) -> BoundaryGrads:
        """The gradients that are needed."""
        d_stream, d_y = grads
        like = cast(Tensor, d_stream if d_stream is not None else d_y)
        stream, f, stats = saved[:3]
        mask = needs if isinstance(needs, BoundaryGradMask) else BoundaryGradMask(*needs)
        arguments = d_stream, d_y, stream, f, stats, OptionalTensors(*saved[3:]), spec, mask
        if spec.backend == "reference" or not like.numel():
            return reference.backward(*arguments)
        return on_device_of(like, import_backend("norm_add_norm", "triton").backward, *arguments)

    def fake_backward(self, grads: Tensors, saved: Tensors, spec: BoundarySpec) -> Tensors:
        """Empty tensors like the gradients."""
        like = cast(Tensor, next(grad for grad in grads if grad is not None))
        rows = [like.new_empty(like.shape, dtype=dtype) for dtype in (spec.x_dtype, spec.f_dtype)]
        return [*rows, *(None if tensor is None else torch.empty_like(tensor) for tensor in saved[3:-1])]

    def differentiable(self, tensors: Tensors, spec: BoundarySpec) -> tuple[Tensor, Tensor]:
        """The reference, whose operations PyTorch differentiates."""
        x, f, *rest = tensors
        return reference.forward(cast(Tensor, x), cast(Tensor, f), OptionalTensors(*rest), spec)[:2]

    def differentiable_backward(
        self, grads: Tensors, saved: Tensors, spec: BoundarySpec, needs: Sequence[bool]
    ) -> BoundaryGrads:
        """The reference with statistics recomputed from the saved tensors, so that they are differentiated too."""
        (d_stream, d_y), (stream, f, _, *rest) = grads, saved
        d_y = d_y if spec.has_next_norm else None
        if d_stream is None and d_y is None:
            return BoundaryGrads()
        tensors, mask = OptionalTensors(*rest), BoundaryGradMask(*needs)
        return reference.backward(d_stream, d_y, stream, f, None, tensors, spec, mask)

    def gradients(
        self,
        backward: Callable[..., Tensors],
        grads: Tensors,
        saved: Tensors,
        spec: BoundarySpec,
        needs: Sequence[bool],
    ) -> Tensors:
        """The gradients, where a gradient that equals another tensor is that tensor."""
        d_stream, d_y = grads
        d_y = d_y if spec.has_next_norm else None
        if d_stream is None and d_y is None:
            return BoundaryGrads()
        out_weight, out_bias, _, _, branch_scale, out_scale, _, _ = saved[3:]
        is_plain_add = out_weight is None and out_bias is None and branch_scale is None and out_scale is None
        plan = _grad_plan(spec, needs, is_plain_add, d_y is not None)
        values: Tensors = BoundaryGrads()
        if True in plan.computed:
            read = saved if d_y is not None else (None, *saved[1:])
            values = backward((d_stream, d_y), read, spec, plan.computed)
        if not (plan.x_is_d_stream or plan.f_is_dx):
            return values
        dx, df, *rest = values
        if plan.x_is_d_stream:
            dx = cast(Tensor, d_stream).to(spec.x_dtype)
        return dx if needs[0] else None, dx if plan.f_is_dx else df, *rest


BOUNDARY = BoundaryOp()
PreparedBoundary = Callable[..., tuple[Tensor, Tensor]]
"""A boundary as a function of all its tensors."""


def apply(x: Tensor, f: Tensor, tensors: OptionalTensors, spec: BoundarySpec) -> tuple[Tensor, Tensor]:
    """The new stream and the input of the next branch, by the backend of the spec."""
    if spec.backend == "composed":
        return composed.forward(x, f, tensors, spec)
    if spec.backend == "reference" and torch.compiler.is_compiling():
        return reference.forward(x, f, tensors, spec)[:2]  # the compiler fuses its operations
    return cast(tuple[Tensor, Tensor], BOUNDARY((x, f, *tensors), spec))


def prepare_unobserved(x: Tensor, f: Tensor, tensors: OptionalTensors, spec: BoundarySpec) -> PreparedBoundary:
    """A function of all tensors that computes :func:`apply` for plain ones, where nothing apart from autograd sees it.

    Args:
        x: A stream; the function is for tensors of the same signatures as those given here.
        f: A branch's output.
        tensors: The other tensors.
        spec: Everything else.
    """
    if spec.backend != "composed":
        return functools.partial(_apply_unobserved, spec)
    if composed.is_plain(x, f, tensors, spec):
        return composed.plain_boundary(spec, x.shape[-1])
    return lambda x, f, *given: composed.forward(x, f, OptionalTensors(*given), spec)


def _apply_unobserved(spec: BoundarySpec, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
    if any_requires_grad(inputs) or any_negative(inputs):
        return cast(tuple[Tensor, Tensor], BOUNDARY.call_unobserved(inputs, spec))
    x, f, *rest = inputs
    return _forward(cast(Tensor, x), cast(Tensor, f), OptionalTensors(*rest), spec, training=False)[:2]


def _forward(x: Tensor, f: Tensor, tensors: OptionalTensors, spec: BoundarySpec, training: bool) -> Any:
    """New stream, input of the next branch and statistics, by the reference or the kernels."""
    if spec.backend == "reference" or not x.numel():
        return reference.forward(x, f, tensors, spec)
    return on_device_of(x, import_backend("norm_add_norm", "triton").forward, x, f, tensors, spec, training)
