"""The one way to write an op with its own backward pass.

A subclass of :class:`DifferentiableOp` defines the forward and backward passes, the shapes of their results, and the
same function in differentiable PyTorch operations. The base class registers both passes with ``torch.library`` and
chooses the path of each call:

================================================  =====================================================
active                                            path
================================================  =====================================================
a ``torch.func`` transform, forward mode          the differentiable form
``torch.compile``, a tracer, a dispatch mode,     the registered operator, which they see as one node
a tensor subclass
autograd                                          an autograd function, without the dispatcher's overhead
nothing                                           the forward pass itself
================================================  =====================================================

A backward pass that is differentiated or transformed in turn also uses the differentiable form.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast, get_type_hints

import torch
from torch import Tensor

from normplace.ops.tracing import (
    all_plain,
    any_negative,
    any_requires_grad,
    in_transform,
    is_grads_batched,
    is_traced,
    needs_differentiable_backward,
)

NAMESPACE = "normplace"
"""The operators are ``torch.ops.<NAMESPACE>.<name>``."""
Spec = TypeVar("Spec", bound=tuple)
Tensors = Sequence[Tensor | None]
SCHEMA_TYPES = {str: "str", bool: "bool", int: "int", float: "float", torch.dtype: "ScalarType"}


class DifferentiableOp(ABC, Generic[Spec]):
    """An op with hand-written forward and backward passes; create one instance of each subclass.

    The arguments of an op are tensors, some of them optional, and a spec: a named tuple of everything else.
    """

    name: ClassVar[str]
    """The operator is ``torch.ops.normplace.<name>``, its backward pass ``<name>_backward``."""
    inputs: ClassVar[tuple[str, ...]]
    """Names of the tensor arguments; ``?`` marks an optional one."""
    saved: ClassVar[tuple[str, ...]]
    """Names of the tensors that :meth:`save` returns."""
    spec_type: ClassVar[type[tuple]]
    num_results: ClassVar[int] = 1
    """Results that the caller receives."""
    num_outputs: ClassVar[int] = 1
    """Results of the forward pass, including those that only the backward pass reads."""
    num_grads: ClassVar[int]
    """Leading inputs that can have a gradient."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("forward", "backward", "differentiable"):
            if name in vars(cls):
                setattr(cls, name, _without_autocast(vars(cls)[name]))

    def __init__(self) -> None:
        fields = get_type_hints(self.spec_type)
        spec = ", ".join(f"{SCHEMA_TYPES[kind]} {name}" for name, kind in fields.items())
        inputs = _declared(self.inputs)
        gradients = _declared(f"grad_{number}?" for number in range(self.num_results))
        saved = _declared(f"saved_{name.removesuffix('?')}?" for name in self.saved)
        self.operator = torch.library.custom_op(
            f"{NAMESPACE}::{self.name}",
            self._run,
            mutates_args=(),
            schema=f"({_listed(inputs, spec)}) -> {_returned(self.num_outputs)}",
        )
        self.operator.register_fake(self._run_fake)
        self.operator.register_autograd(self._backward_of_operator, setup_context=self._setup_operator)
        self.backward_operator = torch.library.custom_op(
            f"{NAMESPACE}::{self.name}_backward",
            self._run_backward,
            mutates_args=(),
            schema=f"({_listed(gradients, saved, spec, 'bool[] needs')}) -> {_returned(self.num_grads)}",
        )
        self.backward_operator.register_fake(self._run_backward_fake)

    @abstractmethod
    def forward(self, tensors: Tensors, spec: Spec, *, training: bool = True) -> tuple[Tensor, ...]:
        """Compute the outputs; those that only the backward pass reads may be left out if not ``training``."""

    @abstractmethod
    def fake_forward(self, tensors: Tensors, spec: Spec) -> tuple[Tensor, ...]:
        """Empty tensors like the outputs."""

    def save(self, tensors: Tensors, spec: Spec, outputs: tuple[Tensor, ...], needs: Sequence[bool]) -> Tensors:
        """The tensors that the backward pass reads.

        The default implementations of the methods below expect the inputs first.
        """
        del spec, needs
        return *tensors, *outputs[self.num_results :]

    @abstractmethod
    def backward(self, grads: Tensors, saved: Tensors, spec: Spec, needs: Sequence[bool]) -> Tensors:
        """Gradients of the first :attr:`num_grads` inputs; None for one that is not needed.

        Args:
            grads: Gradients of the results; None for a result that was not used.
            saved: What :meth:`save` returned.
            spec: Everything that is not a tensor.
            needs: Which gradients are needed.
        """

    def fake_backward(self, grads: Tensors, saved: Tensors, spec: Spec) -> Tensors:
        """Empty tensors like the gradients, needed or not."""
        del grads, spec
        return [None if tensor is None else torch.empty_like(tensor) for tensor in saved[: self.num_grads]]

    @abstractmethod
    def differentiable(self, tensors: Tensors, spec: Spec) -> tuple[Tensor, ...]:
        """The results, computed by PyTorch operations that autograd and ``torch.func`` differentiate."""

    def differentiable_backward(self, grads: Tensors, saved: Tensors, spec: Spec, needs: Sequence[bool]) -> Tensors:
        """Gradients that can be differentiated in turn."""
        inputs = list(saved[: len(self.inputs)])
        wanted = [number for number, need in enumerate(needs) if need and inputs[number] is not None]
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            results = self.differentiable(inputs, spec)
        used = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
        values = torch.autograd.grad(
            [result for result, _ in used],
            [cast(Tensor, inputs[number]) for number in wanted],
            [grad for _, grad in used],
            create_graph=create_graph,
            allow_unused=True,
        )
        by_position = dict(zip(wanted, values, strict=True))
        return [by_position.get(number) for number in range(self.num_grads)]

    def gradients(
        self, backward: Callable[..., Tensors], grads: Tensors, saved: Tensors, spec: Spec, needs: Sequence[bool]
    ) -> Tensors:
        """Gradients by a backward pass that autograd does not record.

        Override to reuse an incoming gradient, which an operator may not return.

        Args:
            backward: :meth:`backward`, called directly or as an operator.
            grads: See :meth:`backward`.
            saved: See :meth:`backward`.
            spec: See :meth:`backward`.
            needs: See :meth:`backward`.
        """
        return backward(grads, saved, spec, needs)

    def __call__(self, tensors: Tensors, spec: Spec) -> tuple[Tensor, ...]:
        """The results, by the fastest path compatible with active tracing, transforms and autograd."""
        if in_transform():
            return self.differentiable(tensors, spec)
        if is_traced() or not all_plain(*tensors):
            outputs = self.operator(*tensors, *spec)
            return outputs[: self.num_results] if self.num_outputs > 1 else (outputs,)
        return self.call_unobserved(tensors, spec)

    def call_unobserved(self, tensors: Tensors, spec: Spec) -> tuple[Tensor, ...]:
        """The results for plain tensors, where nothing apart from autograd sees the call."""
        if any_requires_grad(tensors):
            return self.call_recorded(tensors, spec)
        return self.forward(_resolve_negative(tensors), spec, training=False)[: self.num_results]

    def call_recorded(self, tensors: Tensors, spec: Spec) -> tuple[Tensor, ...]:
        """The results for plain tensors, where autograd sees the call and nothing else does."""
        return _apply_unchecked(*_resolve_negative(tensors), spec, self)

    def _split(self, arguments: Sequence[Any]) -> tuple[Tensors, Spec]:
        count = len(self.inputs)
        return arguments[:count], cast(Spec, self.spec_type(*arguments[count:]))

    def _run(self, *arguments: Any) -> Any:
        return _unwrapped(self.forward(*self._split(arguments)))

    def _run_fake(self, *arguments: Any) -> Any:
        return _unwrapped(self.fake_forward(*self._split(arguments)))

    def _split_backward(self, arguments: Sequence[Any]) -> tuple[Tensors, Tensors, Spec, Sequence[bool]]:
        first, last = self.num_results, self.num_results + len(self.saved)
        spec = cast(Spec, self.spec_type(*arguments[last:-1]))
        return arguments[:first], arguments[first:last], spec, arguments[-1]

    def _run_backward(self, *arguments: Any) -> Any:
        grads, saved, spec, needs = self._split_backward(arguments)
        return _without_gaps(grads, self.backward(grads, saved, spec, needs), needs)

    def _run_backward_fake(self, *arguments: Any) -> Any:
        grads, saved, spec, needs = self._split_backward(arguments)
        return _without_gaps(grads, self.fake_backward(grads, saved, spec), needs)

    def _backward_by_operator(self, grads: Tensors, saved: Tensors, spec: Spec, needs: Sequence[bool]) -> Tensors:
        values = self.backward_operator(*grads, *saved, *spec, list(needs))
        values = values if self.num_grads > 1 else (values,)
        return [value if need else None for value, need in zip(values, needs, strict=True)]

    def setup(self, ctx: Any, tensors: Tensors, spec: Spec, outputs: tuple[Tensor, ...]) -> None:
        """Prepare an autograd context for :meth:`run_gradients`."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*self.save(tensors, spec, outputs, ctx.needs_input_grad[: self.num_grads]))
        ctx.spec = spec

    def run_gradients(self, ctx: Any, grads: Tensors, *, as_operator: bool) -> Tensors:
        """One gradient for each input, None where there is none."""
        count = len(self.inputs)
        grads = grads[: self.num_results]
        is_used = is_batched = False
        for grad in grads:
            if grad is not None:
                is_used = True
                is_batched = is_batched or is_grads_batched(grad)
        if not is_used:
            return [None] * count
        arguments = grads, ctx.saved_tensors, ctx.spec, ctx.needs_input_grad[: self.num_grads]
        if is_batched or needs_differentiable_backward():
            values = self.differentiable_backward(*arguments)
        else:
            by_operator = as_operator or is_traced()
            backward = self._backward_by_operator if by_operator else self.backward
            values = self.gradients(backward, _resolve_negative(grads), *arguments[1:])
        return [*values, *[None] * (count - self.num_grads)]

    def _setup_operator(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if self.num_outputs > 1 else (output,)
        if self.num_outputs > self.num_results:
            ctx.mark_non_differentiable(*outputs[self.num_results :])
        self.setup(ctx, *self._split(inputs), outputs)

    def _backward_of_operator(self, ctx: Any, *grads: Tensor | None) -> Any:
        return *self.run_gradients(ctx, grads, as_operator=True), *[None] * len(ctx.spec)


def _without_autocast(method: Callable[..., Any]) -> Callable[..., Any]:
    """A pass whose arithmetic has the precision that the op chooses, where autocast would lower that of its products.

    Args:
        method: A pass that takes tensors first.
    """

    @functools.wraps(method)
    def run(self: Any, tensors: Tensors, *arguments: Any, **options: Any) -> Any:
        first = tensors[0]
        if first is None:
            first = next(tensor for tensor in tensors if tensor is not None)
        device = first.device.type
        if not torch.is_autocast_enabled(device):
            return method(self, tensors, *arguments, **options)
        with torch.autocast(device, enabled=False):
            return method(self, tensors, *arguments, **options)

    return run


class _EagerFunction(torch.autograd.Function):
    """The op without the dispatcher. A ``setup_context`` would add the cost of inspecting the signature."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        tensors, spec, op = arguments[:-2], arguments[-2], arguments[-1]
        outputs = op.forward(tensors, spec)
        op.setup(ctx, tensors, spec, outputs)
        ctx.op = op
        return outputs[: op.num_results]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *ctx.op.run_gradients(ctx, grads, as_operator=False), None, None


def _resolve_negative(tensors: Tensors) -> Tensors:
    """The tensors, with a copy of each that has the negative bit; the dispatcher does so for operators."""
    return [None if x is None else x.resolve_neg() for x in tensors] if any_negative(tensors) else tensors


def is_own_backward(node: Any) -> bool:
    """Whether a node of an autograd graph is the backward pass of a :class:`DifferentiableOp`."""
    return getattr(type(node), "_forward_cls", None) is _EagerFunction


# ``Function.apply`` without its check for transforms, which ``DifferentiableOp.__call__`` has already made.
_apply_unchecked = cast(Any, super(torch.autograd.Function, _EagerFunction)).apply


def _declared(names: Any) -> str:
    return ", ".join(f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}" for name in names)


def _listed(*arguments: str) -> str:
    return ", ".join(part for part in arguments if part)


def _returned(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _unwrapped(outputs: tuple[Tensor, ...]) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs


def _without_gaps(grads: Tensors, values: Tensors, needs: Sequence[bool]) -> Any:
    """The values, with an empty tensor in place of None or of one that is not needed: an operator returns tensors."""
    like = next(grad for grad in grads if grad is not None)
    pairs = zip(values, needs, strict=True)
    return _unwrapped(tuple(value if need and value is not None else like.new_empty(0) for value, need in pairs))
