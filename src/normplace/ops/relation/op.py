"""The relations as PyTorch operators, and the choice of their backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.backends import BackendChoice, choose_triton, import_backend, numba_unavailable_reason, on_device_of
from normplace.ops.features import compute_dtype
from normplace.ops.registration import DifferentiableOp, Tensors
from normplace.ops.relation import differentiable, pair_reference, scan_reference
from normplace.ops.relation.common import RelationSpec, row_weights
from normplace.ops.tracing import is_traced

BACKENDS = ("auto", "reference", "numba", "triton")
# A program of the scan's kernels keeps whole rows in its registers.
MAX_WIDTH = 16_384
# Exponentials for which a thousand calls of the reference take less time than numba needs to compile.
SMALL = 1 << 18
# Below it, eps times the factor of a lowered y would not be a normal float32.
MIN_EPS = 1e-12


def scan_unsupported(a: Tensor, spec: RelationSpec) -> str | None:
    """Why numba's loops cannot compute a scan; None if they can."""
    if a.dtype == torch.float64:
        return "its loops compute in float32 and the tensors are float64"
    if scan_reference.keeps_top(spec, a.shape[2], a.dtype):
        return "without a norm or with wide heads, sums of exponentials could overflow"
    if spec.post_norm and scan_reference.lowering(spec, a.shape[2]) is None:
        return "with wide heads or mean=False, squares of the sums before the post-norm could overflow"
    return f"its loops need an eps of at least {MIN_EPS}" if spec.eps < MIN_EPS else None


def pairs_unsupported(a: Tensor, spec: RelationSpec) -> str | None:
    """Why numba's loops cannot compute a pairwise relation; None if they can."""
    if a.dtype == torch.float64:
        return "its loops compute in float32 and the tensors are float64"
    if spec.norm != "joint" or spec.activation != "exp":
        return "its loops compute exponentials of normalized pairs"
    if a.shape[2] // spec.heads > pair_reference.MAX_WIDTH:
        return "exponentials of pairs as wide as these could overflow"
    return f"its loops need an eps of at least {MIN_EPS}" if spec.eps < MIN_EPS else None


class Loops(NamedTuple):
    """The loops of a relation that numba compiles."""

    module: str
    """Name of the module with ``forward`` and ``backward``."""
    unsupported: Callable[[Tensor, RelationSpec], str | None]
    """Why they cannot compute it; None if they can."""
    exponentials: Callable[[Tensor], int]
    """About how many exponentials they compute."""


def choose_backend(a: Tensor, spec: RelationSpec, loops: Loops) -> BackendChoice:
    """The backend that computes a relation.

    Args:
        a: One of the inputs.
        spec: Its ``backend`` is one of :data:`BACKENDS`; ``auto`` is the fastest that runs.
        loops: The relation's loops for a CPU.

    Raises:
        UsageError: If the requested backend cannot run.
    """
    requested, device = spec.backend, a.device.type
    if requested == "reference":
        return BackendChoice(requested, "requested")
    if requested == "numba" or (requested == "auto" and device == "cpu"):
        reason = loops.unsupported(a, spec)
        if device != "cpu":
            reason = f"it needs a CPU and the tensors are on {device}"
        elif requested == "auto" and is_traced():
            reason = "a dispatch mode, such as that of an audit, does not see the loops"
        elif requested == "auto" and reason is None and loops.exponentials(a) < SMALL:
            reason = "the inputs are too small to be worth the compilation"
        reason = reason or numba_unavailable_reason()
        if requested == "numba" and reason is not None:
            raise UsageError(f"backend 'numba' cannot run: {reason}; use backend='auto'.")
        return BackendChoice("numba", "the fastest on a CPU") if reason is None else BackendChoice("reference", reason)
    unsupported = None
    if torch.version.hip is not None:
        unsupported = "the Triton kernels multiply in TF32x3, which AMD GPUs do not support"
    elif a.dtype == torch.float64 or a.shape[2] > MAX_WIDTH:
        unsupported = (
            f"the Triton kernels support float32, bfloat16 and float16 with up to {MAX_WIDTH} channels, not {a.dtype} "
            f"with {a.shape[2]}"
        )
    return choose_triton(requested, device, unsupported=unsupported)


class RelationOp(DifferentiableOp[RelationSpec]):
    """A relation of ``a`` and ``b``; ``weight`` holds the factors of the rows' sums if there is a mask.

    Args:
        name: Name of the operator.
        reference: Module with ``forward`` and ``backward`` in plain PyTorch.
        kernels: Name of the module with ``forward`` and ``backward`` in Triton.
        loops: The loops that numba compiles.
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
        loops: Loops,
        differentiable_form: Callable[..., Tensor],
        float32_post_norm: bool = False,
    ) -> None:
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]
        self.reference = reference
        self.modules = {"triton": kernels, "numba": loops.module}
        self.loops = loops
        self.differentiable_form = differentiable_form
        self.float32_post_norm = float32_post_norm
        super().__init__()

    def forward(self, tensors: Tensors, spec: RelationSpec, *, training: bool = True) -> tuple[Tensor]:
        """The relation of every row."""
        a, b, weight = cast(tuple[Tensor, Tensor, Any], tensors)
        backend = self._choose(a, spec)
        if backend == "triton":
            return (on_device_of(a, self._module(backend).forward, a, b, weight, spec),)
        y = self._module(backend).forward(a, b, _weights(weight, a, spec), spec)
        dtype = self._dtype(a, spec)
        return (y if y.dtype == dtype else y.to(dtype),)  # a cast to the same dtype would count as a read

    def fake_forward(self, tensors: Tensors, spec: RelationSpec) -> tuple[Tensor]:
        """An empty tensor like the result of :meth:`forward`."""
        a = cast(Tensor, tensors[0])
        return (torch.empty_like(a, dtype=self._dtype(a, spec)),)

    def backward(self, grads: Tensors, saved: Tensors, spec: RelationSpec, needs: Sequence[bool]) -> Tensors:
        """Gradients of a and b."""
        grad = cast(Tensor, grads[0])
        a, b, weight = cast(tuple[Tensor, Tensor, Any], saved)
        backend = self._choose(a, spec)
        if backend != "triton":
            da, db = self._module(backend).backward(grad, a, b, _weights(weight, a, spec), spec)
            return da.to(a.dtype), db.to(b.dtype)
        grad = grad.to(self._dtype(a, spec)).contiguous()
        return on_device_of(a, self._module(backend).backward, grad, a, b, weight, spec)

    def differentiable(self, tensors: Tensors, spec: RelationSpec) -> tuple[Tensor]:
        """The relation of every row."""
        a, b, weight = cast(tuple[Tensor, Tensor, Any], tensors)
        return (self.differentiable_form(a, b, _weights(weight, a, spec), spec),)

    def _choose(self, a: Tensor, spec: RelationSpec) -> str:
        return choose_backend(a, spec, self.loops).backend

    def _module(self, backend: str) -> Any:
        return self.reference if backend == "reference" else import_backend("relation", self.modules[backend])

    def _dtype(self, a: Tensor, spec: RelationSpec) -> torch.dtype:
        return compute_dtype(a.dtype) if self.float32_post_norm and spec.post_norm else a.dtype


def _weights(weight: Tensor | None, a: Tensor, spec: RelationSpec) -> Tensor:
    if weight is not None:
        return weight
    return row_weights(None, a.shape[1], spec, a.new_empty(0, dtype=compute_dtype(a.dtype)))


SCAN = RelationOp(
    "relation_scan",
    scan_reference,
    "triton_scan",
    Loops("numba_scan", scan_unsupported, lambda a: 2 * a.numel()),
    differentiable.scan,
)
PAIRS = RelationOp(
    "relation_pairs",
    pair_reference,
    "triton_pairs",
    Loops("numba_pairs", pairs_unsupported, lambda a: a.numel() * a.shape[1] // 2),
    differentiable.pairs,
    float32_post_norm=True,
)
