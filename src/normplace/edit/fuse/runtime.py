"""The fused parts of a model: sums that also compute the norms around them, and norms as one kernel.

A fused sum computes the norm that reads it in the same pass and keeps the result for that norm, which returns it when
it is called with the same, unchanged tensor. In every other case norms and sums run as the model has them: under
``torch.compile``, whose compiler fuses them, while operators are recorded, traced or transformed, with hooks on an
output norm, with sharded parameters, for tensors that differ in shape or device, and for dtypes whose casts are
unknown.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.edit.fuse.forms import Casts, NormForm
from normplace.edit.fuse.helpers import HelperSum, rewrite_helper
from normplace.ops import norm_add_norm
from normplace.ops.tracing import PLAIN_TYPES
from normplace.stack.hooks import has_call_hooks
from normplace.stack.mode import blocked_by, is_switched_off

SUMS = "normplace_sums"
"""The attribute of a module that holds its fused sums."""
BACKEND = "auto"
"""The backend of the fused ops."""


class Normed(NamedTuple):
    """The result of a norm that a fused sum has computed already."""

    norm: nn.Module
    value: Tensor
    version: int | None
    """Of the sum, which changes when it is written to; None for inference tensors, which have no version."""
    grad_fn: Any
    """Of the sum, which a reentrant checkpoint replaces: the result of the norm then has no gradient."""
    casts: Casts
    """Of the call, which autocast changes."""


_normed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Results of norms by the sum that they read, until the sum is freed."""
_viewed: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()
"""The sum of which a norm will read a view, until it does: the model's code may keep the view only."""


class NormRef:
    """A norm of a model, looked up at every call, so that a replaced module is noticed."""

    def __init__(self, parent: nn.Module, name: str, form: NormForm) -> None:
        self.parent, self.name, self.form = parent, name, form

    @property
    def module(self) -> nn.Module:
        """The norm."""
        return getattr(self.parent, self.name)

    def arguments(self, side: str, x: Tensor, dtype: torch.dtype) -> tuple[dict[str, Any], Casts] | None:
        """The arguments of the fused op for this norm and its casts, or None if the op cannot compute it.

        Args:
            side: ``out`` before the add, ``in`` after it.
            x: A tensor of the shape and device of the norm's input.
            dtype: The dtype of the norm's input.
        """
        norm, form = self.module, self.form
        if type(norm) is not form.module:
            return None
        weight, bias = form.parameters(norm)
        casts = _casts(form, x, dtype, weight, bias)
        if casts is None:
            return None
        rounding = casts.before_add(dtype) if side == "out" else casts.rounding
        return {
            f"{side}_norm": form.norm, f"{side}_weight": weight, f"{side}_bias": bias, f"{side}_eps": form.eps,
            f"{side}_rounding": rounding, "unit_offset": form.unit_offset,
        }, casts  # fmt: skip


class FusedSum:
    """A residual sum with the norms around it.

    Args:
        out: The norm of the branch's output, whose call is left out of the rewritten code; None if there is none.
        after: The norm that reads the sum; None if there is none.
        skip_first: Whether the first operand is the skip.
        device: The kind of device on which the fused form is used; None for any.
        helper: The function that computes the sum, if the method calls one.
        is_viewed: Whether the norm reads the rows of the sum in another shape.
    """

    def __init__(
        self,
        out: NormRef | None,
        after: NormRef | None,
        skip_first: bool,
        device: str | None,
        helper: HelperSum | None = None,
        is_viewed: bool = False,
    ) -> None:
        self.out, self.after, self.skip_first, self.device = out, after, skip_first, device
        self.helper, self.is_viewed = helper, is_viewed

    def in_helper(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that computes the sum, with this sum in its place."""
        assert self.helper is not None
        return rewrite_helper(self.helper)(self, *args, **kwargs)

    def __call__(self, left: Tensor, right: Tensor, in_place: bool = False) -> Tensor:
        """The sum of the operands, the branch normalized first if there is an output norm.

        A sum that the model adds in place has the dtype of the first operand.
        """
        left, right = waited(left), waited(right)
        skip, branch = (left, right) if self.skip_first else (right, left)
        before = after = None
        if self.out is not None:
            if may_fuse(skip, self.device) and are_alike(skip, branch) and not is_observed(self.out.module):
                before = self.out.arguments("out", branch, branch.dtype)
            if before is None:
                branch = self.out.module(branch)
        if may_fuse(skip, self.device) and are_alike(skip, branch):
            branch_dtype = branch.dtype if before is None else before[1].result
            left_dtype = skip.dtype if self.skip_first else branch_dtype
            dtype = left_dtype if in_place else torch.promote_types(skip.dtype, branch_dtype)
            if self.after is not None and isinstance(vars(self.after.module).get("forward"), FusedForward):
                after = self.after.arguments("in", skip, dtype)
            if before is not None or after is not None:
                return self._fused(skip, branch, dtype, before, after)
        total = skip + branch if self.skip_first else branch + skip
        return total.to(skip.dtype if self.skip_first else branch.dtype) if in_place else total

    def _fused(
        self,
        skip: Tensor,
        branch: Tensor,
        dtype: torch.dtype,
        before: tuple[dict[str, Any], Casts] | None,
        after: tuple[dict[str, Any], Casts] | None,
    ) -> Tensor:
        """The sum by one kernel, with the arguments of the norms that it computes."""
        norms = {"out_norm": None, "in_norm": None, "stream_dtype": dtype}
        norms |= {} if before is None else before[0]
        norms |= {} if after is None else after[0] | {"y_dtype": after[1].result}
        stream, value = norm_add_norm(skip, branch, **norms, backend=BACKEND)
        if self.after is not None and after is not None:
            keep_normed(stream, self.after.module, value, after[1])
            if self.is_viewed:
                _viewed[self.after.module] = stream
        return stream


class FusedForward:
    """The ``forward`` of one norm: the result that a fused sum has computed, or one kernel.

    As an instance attribute it hides the method of the norm's class.

    Args:
        module: The norm.
        form: What it computes.
        kernel: Whether to compute it by one kernel where no sum has done so; otherwise by its own method.
        device: The kind of device on which the fused form is used; None for any.
    """

    def __init__(self, module: nn.Module, form: NormForm, kernel: bool, device: str | None) -> None:
        self.module, self.form, self.kernel, self.device = module, form, kernel, device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The norm of the only argument."""
        x = args[0] if args else next(iter(kwargs.values()), None)
        if len(args) + len(kwargs) == 1 and isinstance(x, Tensor) and may_fuse(x, self.device):
            casts = _casts(self.form, x, x.dtype, *self.form.parameters(self.module))
            if casts is not None:
                normed = take_normed(x, self.module, casts)
                if normed is not None:
                    return normed
                if self.kernel:
                    return self._by_kernel(x, casts)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _by_kernel(self, x: Tensor, casts: Casts) -> Tensor:
        # Queries and keys are often a transposed view of contiguous rows, whose layout elementwise operators keep.
        if x.dim() == 4 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous():
            return self.form.apply(x.transpose(1, 2), self.module, casts, BACKEND).transpose(1, 2)
        return self.form.apply(x, self.module, casts, BACKEND)


def take_normed(x: Tensor, norm: nn.Module, casts: Casts) -> Tensor | None:
    """The result of a norm that a fused sum has computed for this tensor, if it is still the norm's result."""
    viewed_sum = _viewed.pop(norm, None)
    source = x if x in _normed else _same_rows(x, viewed_sum)
    known: Normed | None = None if source is None else _normed.get(source)
    if known is None or source is None or known.norm is not norm or known.casts != casts:
        return None
    if not is_known(known, source) or _has_gradient_hooks(x):
        return None
    return known.value if source is x else known.value.view(x.shape)


def _same_rows(x: Tensor, total: Tensor | None) -> Tensor | None:
    """The sum, if x is a view of it that has the same rows in another shape."""
    if total is None or not (x.is_contiguous() and total.is_contiguous()):
        return None
    # The sum may itself be a view, of the rows that an op returned.
    is_view = x._base is not None and (x._base is total or x._base is total._base)
    is_same = (x.data_ptr(), x.numel(), x.dtype) == (total.data_ptr(), total.numel(), total.dtype)
    return total if is_view and is_same and x.shape[-1:] == total.shape[-1:] and _is_direct(x, total) else None


def _is_direct(x: Tensor, total: Tensor) -> bool:
    """Whether no code can observe a gradient between a sum and its view: they are one operator apart.

    Backward hooks of modules and FSDP pass the inputs of a layer through a function, which returns views of them.
    """
    if x.grad_fn is None or total.grad_fn is None:
        return x.grad_fn is total.grad_fn
    if isinstance(x.grad_fn, BackwardCFunction):
        return False
    return [node for node, _ in x.grad_fn.next_functions] == [total.grad_fn]


def keep_normed(stream: Tensor, norm: nn.Module, value: Tensor, casts: Casts) -> None:
    """Keep the result of the norm that reads a sum, until the sum is freed."""
    _normed[stream] = Normed(norm, value, version_of(stream), stream.grad_fn, casts)


def is_known(known: Any, x: Tensor) -> bool:
    """Whether a kept result is still the result for its sum, and has a gradient if one is needed."""
    if known.version != version_of(x) or known.grad_fn is not x.grad_fn or _has_gradient_hooks(x):
        return False
    return torch.is_grad_enabled() or not known.value.requires_grad


def fused_backend() -> str:
    """The backend of the fused ops."""
    return BACKEND


def _has_gradient_hooks(x: Tensor) -> bool:
    """Whether code observes the gradient of a sum, which is complete only if its norm is computed separately.

    FSDP gathers the parameters of a layer again when the gradient of its output arrives.
    """
    return bool(x._backward_hooks) or x.retains_grad


def is_normed(x: Tensor) -> bool:
    """Whether a fused sum has computed the result of the norm that reads this tensor."""
    return x in _normed


def is_observed(norm: nn.Module) -> bool:
    """Whether a call of a norm must happen: it has hooks, is compiled, or someone replaced its ``forward``."""
    forward = vars(norm).get("forward")
    return has_call_hooks(norm) or not (forward is None or isinstance(forward, FusedForward))


class _Wait(torch.autograd.Function):
    """The tensor that a collective operation has computed, when it is complete."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        return x.trigger_wait()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def waited(x: Tensor) -> Tensor:
    """The tensor itself, complete: tensor parallel layers return the pending result of a collective operation."""
    if type(x) is Tensor or type(x).__name__ != "AsyncCollectiveTensor" or torch.compiler.is_compiling():
        return x
    return _Wait.apply(x)


def are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one type, shape and device, and the second is of floating point like the first."""
    return (
        type(one) is type(other)
        and (one.shape, one.device) == (other.shape, other.device)
        and other.is_floating_point()
    )


def may_fuse(x: Tensor, device: str | None) -> bool:
    """Whether the fused form may run now for a tensor."""
    if (
        torch.compiler.is_compiling()
        or is_switched_off()
        or type(x) is not Tensor
        or not x.is_floating_point()
        or (device is not None and x.device.type != device)
    ):
        return False
    return blocked_by() is None and x.numel() > 0  # in this order: a tracer records the comparison


def _casts(form: NormForm, x: Tensor, dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None) -> Casts | None:
    """The casts of a norm whose input has this dtype and the shape and device of x, if a kernel can compute it."""
    for parameter in (weight, bias):
        if parameter is not None and (
            type(parameter) not in PLAIN_TYPES or parameter.device != x.device or parameter.shape != x.shape[-1:]
        ):
            return None
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        return None
    return form.casts_of(dtype, bias if weight is None else weight, x.device.type)


def version_of(x: Tensor) -> int | None:
    """The version of a tensor, which changes when it is written to; None for inference tensors, which have none."""
    return None if x.is_inference() else x._version
