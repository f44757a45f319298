"""The relations as PyTorch operators, and the choice of their backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from normplace.ops.backends import BackendChoice, choose_triton, import_backend, on_device_of
from normplace.ops.registration import DifferentiableOp, Tensors
from normplace.ops.relation import differentiable, pair_reference, scan_reference
from normplace.ops.relation.common import RelationSpec, compute_dtype, row_weights

BACKENDS = ("auto", "reference", "triton")
# A program of the scan's kernels keeps whole rows in its registers.
MAX_WIDTH = 16_384


def choose_backend(a: Tensor, requested: str) -> BackendChoice:
    """The backend that computes a relation.

    Args:
        a: One of the inputs.
        requested: One of :data:`BACKENDS`; ``auto`` is the fastest that runs.

    Raises:
        UsageError: If Triton is requested and cannot run.
    """
    if requested == "reference":
        return BackendChoice(requested, "requested")
    unsupported = None
    if torch.version.hip is not None:
        unsupported = "the Triton kernels multiply in TF32x3, which AMD GPUs do not support"
    elif a.dtype == torch.float64 or a.shape[2] > MAX_WIDTH:
        unsupported = (
            f"the Triton kernels support float32, bfloat16 and float16 with up to {MAX_WIDTH} channels, not {a.dtype} "
            f"with {a.shape[2]}"
        )
    return choose_triton(requested, a.device.type, unsupported=unsupported)


class RelationOp(DifferentiableOp[RelationSpec]):
    """A relation of ``a`` and ``b``; ``weight`` holds the factors of the rows' sums if there is a mask.

    Args:
        name: Name of the operator.
        reference: Module with ``forward`` and ``backward`` in plain PyTorch.
        kernels: Name of the module with ``forward`` and ``backward`` in Triton.
        differentiable_form: The relation in differentiable PyTorch operations.
        float32_post_norm: Whether the result stays in float32 or float64 for a post-norm that the op does not compute.
    """

    inputs = ("a", "b", "weight?")
    saved = inputs
    spec_type = RelationSpec
    num_grads = 2

    def __init__(
        self,
        name: str,
        reference: Any,
        kernels: str,
        differentiable_form: Callable[..., Tensor],
        float32_post_norm: bool = False,
    ) -> None:
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]
        self.reference = reference
        self.kernels = kernels
        self.differentiable_form = differentiable_form
        self.float32_post_norm = float32_post_norm
        super().__init__()

    def forward(self, tensors: Tensors, spec: RelationSpec, *, training: bool = True) -> tuple[Tensor]:
        """The relation of every row."""
        a, b, weight = cast(tuple[Tensor, Tensor, Any], tensors)
        if choose_backend(a, spec.backend).backend == "reference":
            y = self.reference.forward(a, b, _weights(weight, a, spec), spec)
            dtype = self._dtype(a, spec)
            return (y if y.dtype == dtype else y.to(dtype),)  # a cast to the same dtype would count as a read
        return (on_device_of(a, import_backend("relation", self.kernels).forward, a, b, weight, spec),)

    def fake_forward(self, tensors: Tensors, spec: RelationSpec) -> tuple[Tensor]:
        """An empty tensor like the result of :meth:`forward`."""
        a = cast(Tensor, tensors[0])
        return (torch.empty_like(a, dtype=self._dtype(a, spec)),)

    def backward(self, grads: Tensors, saved: Tensors, spec: RelationSpec, needs: Sequence[bool]) -> Tensors:
        """Gradients of a and b."""
        grad = cast(Tensor, grads[0])
        a, b, weight = cast(tuple[Tensor, Tensor, Any], saved)
        if choose_backend(a, spec.backend).backend == "reference":
            da, db = self.reference.backward(grad, a, b, _weights(weight, a, spec), spec)
            return da.to(a.dtype), db.to(b.dtype)
        grad = grad.to(self._dtype(a, spec)).contiguous()
        return on_device_of(a, import_backend("relation", self.kernels).backward, grad, a, b, weight, spec)

    def differentiable(self, tensors: Tensors, spec: RelationSpec) -> tuple[Tensor]:
        """The relation of every row."""
        a, b, weight = cast(tuple[Tensor, Tensor, Any], tensors)
        return (self.differentiable_form(a, b, _weights(weight, a, spec), spec),)

    def _dtype(self, a: Tensor, spec: RelationSpec) -> torch.dtype:
        return compute_dtype(a.dtype) if self.float32_post_norm and spec.post_norm else a.dtype


def _weights(weight: Tensor | None, a: Tensor, spec: RelationSpec) -> Tensor:
    if weight is not None:
        return weight
    return row_weights(None, a.shape[1], spec, a.new_empty(0, dtype=compute_dtype(a.dtype)))


SCAN = RelationOp("relation_scan", scan_reference, "triton_scan", differentiable.scan)
PAIRS = RelationOp("relation_pairs", pair_reference, "triton_pairs", differentiable.pairs, float32_post_norm=True)
