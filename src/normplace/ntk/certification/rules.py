"""A recorded operator call with the facts about its arguments, and the registry of rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace.ntk.certification.facts import Value

BoundRule = Callable[["OperatorCall"], "Value | tuple[Value, ...] | None"]
RULES: dict[str, BoundRule] = {}


@dataclass(frozen=True)
class OperatorCall:
    """One recorded operator call.

    Attributes:
        operator: The operator's name, without namespace and overload.
        name: The name of the recorded node, which is also the identity of the result.
        arguments: All arguments by name, in order, defaults included; a tensor is replaced by its :class:`Value`.
        shapes: The shapes of its results.
        dtype: The dtype of the first result.
    """

    operator: str
    name: str
    arguments: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype | None

    @property
    def tensors(self) -> list[Value]:
        """The values of the tensor arguments."""
        return list(_values(self.arguments.values()))

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments in order."""
        return tuple(self.arguments.values())

    def get(self, name: str, default: Any = None) -> Any:
        """An argument by name, or ``default`` if this overload has no such argument."""
        return self.arguments.get(name, default)

    def value(self, position: int) -> Value:
        """An argument as a value; a Python number becomes a constant."""
        argument = self.args[position]
        return argument if isinstance(argument, Value) else number(argument)

    def result(self, *, output: int = 0, bounded_gradient: bool | str = "lipschitz", **facts: Any) -> Value:
        """The value of a result.

        Args:
            output: Index of the result.
            bounded_gradient: Whether the gradient is bounded. ``"lipschitz"``: the operator's derivative is bounded, so
                it is if the arguments' gradients are. ``"local"``: the derivative is bounded on bounded sets, so the
                arguments must also be bounded.
            facts: Other attributes of :class:`Value`.
        """
        inputs = self.tensors
        if isinstance(bounded_gradient, str):
            bounded = bounded_gradient == "lipschitz" or all(value.bounded for value in inputs)
            bounded_gradient = bounded and all(value.bounded_gradient for value in inputs)
        key: Hashable = facts.pop("key", self.name if output == 0 else (self.name, output))
        return Value(
            shape=self.shapes[output],
            key=key,
            depends_on_input=any(value.depends_on_input for value in inputs),
            depends_on_parameters=any(value.depends_on_parameters for value in inputs),
            bounded_gradient=bounded_gradient,
            **facts,
        )

    def unknown(self) -> Value:
        """The value of a result without any facts; it is not even proven finite."""
        return self.result(finite=False)


def _values(arguments: Any) -> Iterator[Value]:
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _values(argument)


def number(value: Any) -> Value:
    """A Python number as a constant."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return Value((), ("number", value), float(value), float(value), depends_on_input=False)
    return Value((), ("number", repr(value)), finite=False, depends_on_input=False)


def rule(*operators: str) -> Callable[[BoundRule], BoundRule]:
    """Register a rule for the named operators."""

    def register(function: BoundRule) -> BoundRule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def same_size(value: Value, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of ``shape`` has as many entries as ``value``."""
    return math.prod(value.shape) == math.prod(shape)


def limits(value: Value) -> dict[str, Any]:
    """The limits of a value, for a result whose entries all come from it."""
    names = ("lower", "upper", "bounded_below", "bounded_above", "positive")
    return {name: getattr(value, name) for name in names}


def product_has_bounded_gradient(a: Value, b: Value) -> bool:
    """Whether da·b + a·db is bounded."""
    left = not a.depends_on_parameters or (a.bounded_gradient and b.bounded)
    right = not b.depends_on_parameters or (b.bounded_gradient and a.bounded)
    return left and right


def index_value(call: OperatorCall) -> Value:
    """The second result, indices into the first argument."""
    size = max(1, math.prod(call.value(0).shape))
    return call.result(output=1, lower=0.0, upper=float(size), bounded_gradient=True)
