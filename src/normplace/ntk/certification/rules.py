"""One recorded operator with what is known of its arguments, and the table of rules that rules are entered in."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace.ntk.certification.facts import Value

Rule = Callable[["Call"], "Value | tuple[Value, ...] | None"]
RULES: dict[str, Rule] = {}


@dataclass(frozen=True)
class Call:
    """One recorded operator with the values of its arguments.

    Attributes:
        operator: Its name, without namespace and overload.
        name: The name of the recorded step, which serves as the identity of its result.
        arguments: All arguments by name, in order, defaults included; tensors are values.
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
        """The values among the arguments."""
        return list(_values(self.arguments.values()))

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments in order."""
        return tuple(self.arguments.values())

    def get(self, name: str, default: Any = None) -> Any:
        """An argument by name, or ``default`` where this overload has none of that name."""
        return self.arguments.get(name, default)

    def value(self, position: int) -> Value:
        """An argument as a value; a number is a constant."""
        argument = self.args[position]
        return argument if isinstance(argument, Value) else number(argument)

    def make(self, *, output: int = 0, slope: bool | str = "lipschitz", **facts: Any) -> Value:
        """The result with the given facts.

        Args:
            output: Which of the results.
            slope: Whether its gradient is bounded where those of the arguments are: ``"lipschitz"`` for an operator
                whose derivative is bounded, ``"local"`` for one whose derivative is bounded on bounded sets, or the
                answer itself.
            facts: Attributes of :class:`~normplace.ntk.certification.facts.Value`.
        """
        inputs = self.tensors
        if isinstance(slope, str):
            bounded = slope == "lipschitz" or all(value.bounded for value in inputs)
            slope = bounded and all(value.slope for value in inputs)
        key: Hashable = facts.pop("key", self.name if output == 0 else (self.name, output))
        return Value(
            shape=self.shapes[output],
            key=key,
            varies=any(value.varies for value in inputs),
            trained=any(value.trained for value in inputs),
            slope=slope,
            **facts,
        )

    def unknown(self) -> Value:
        """A result of which nothing is known, not even that it is finite."""
        return self.make(finite=False)


def _values(arguments: Any) -> Iterator[Value]:
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _values(argument)


def number(value: Any) -> Value:
    """A Python number as a constant."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return Value((), ("number", value), float(value), float(value), varies=False)
    return Value((), ("number", repr(value)), finite=False, varies=False)


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def same_order(value: Value, shape: tuple[int, ...]) -> bool:
    """Whether a result of ``shape`` has the entries of ``value`` one for one."""
    return math.prod(value.shape) == math.prod(shape)


def limits(value: Value) -> dict[str, Any]:
    """The limits of a value, for a result that takes no others."""
    names = ("lower", "upper", "below", "above", "positive")
    return {name: getattr(value, name) for name in names}


def product_slope(a: Value, b: Value) -> bool:
    """Whether da·b + a·db is bounded."""
    return (not a.trained or (a.slope and b.bounded)) and (not b.trained or (b.slope and a.bounded))
