"""What a proof knows of one tensor of a network, for every input at once.

A :class:`Value` describes all entries of a tensor over *all* real inputs x of one shape, at fixed parameters. Its
statements must be true for each finite value of the trainable parameters; the constants behind them ("bounded
below", "bounded away from zero") may depend on the parameters but never on x. Arithmetic is exact: a proof is about
the real function, not about overflow.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

INF = math.inf


@dataclass(frozen=True)
class Power:
    """A comparison of a tensor with a power of another: entries of ``key`` to the power ``degree``.

    The comparison is entry by entry after broadcasting from ``shape``: a mean over the last axis of a (4, 3) tensor is
    compared with it in shape (4, 1).
    """

    key: Hashable
    shape: tuple[int, ...]
    degree: float


@dataclass(frozen=True)
class Value:
    """Facts about a tensor for every input.

    Attributes:
        shape: Its shape.
        key: Its identity; copies and casts of a tensor share it.
        lower: A number that no entry is below, -inf if none is known.
        upper: A number that no entry is above, inf if none is known.
        below: Whether the entries are bounded below (by a constant that may depend on the parameters).
        above: Whether they are bounded above.
        positive: Whether they are bounded below by a constant above zero.
        apart: Whether they are bounded away from zero, on either side.
        finite: Whether every entry is proven to be a finite number.
        varies: Whether it depends on the input.
        trained: Whether it depends on a trainable parameter.
        slope: Whether its gradient with respect to the trainable parameters is bounded.
        over: Powers that c times this tensor exceeds, for some constant c.
        inverse: Powers whose reciprocals exceed c times the magnitude of this tensor, for some constant c > 0.
        mean: The identity of the tensor, and its axes, that this is the mean of.
        holes: Where it is -inf instead of a finite number (a fixed mask), if anywhere.
        numbers: The tensor itself, where neither inputs nor training change it.
    """

    shape: tuple[int, ...]
    key: Hashable
    lower: float = -INF
    upper: float = INF
    below: bool = False
    above: bool = False
    positive: bool = False
    apart: bool = False
    finite: bool = True
    varies: bool = True
    trained: bool = False
    slope: bool = True
    over: frozenset[Power] = frozenset()
    inverse: frozenset[Power] = frozenset()
    mean: tuple[Hashable, tuple[int, ...]] | None = None
    holes: Tensor | None = field(default=None, compare=False)
    numbers: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Make the weaker statements follow from the stronger ones."""
        if not self.finite:
            for name in ("below", "above", "positive", "apart"):
                object.__setattr__(self, name, False)
            object.__setattr__(self, "lower", -INF)
            object.__setattr__(self, "upper", INF)
            object.__setattr__(self, "over", frozenset())
            object.__setattr__(self, "inverse", frozenset())
            object.__setattr__(self, "slope", not self.trained)
            return
        object.__setattr__(self, "below", self.below or self.lower > -INF or self.positive)
        object.__setattr__(self, "above", self.above or self.upper < INF)
        object.__setattr__(self, "positive", self.positive or self.lower > 0)
        object.__setattr__(self, "apart", self.apart or self.positive or self.upper < 0)
        if self.positive:
            object.__setattr__(self, "lower", max(self.lower, 0.0))
        if not self.trained:
            object.__setattr__(self, "slope", True)

    @property
    def bounded(self) -> bool:
        """Whether every entry is finite and within fixed limits."""
        return self.finite and self.below and self.above and self.holes is None

    @property
    def nonnegative(self) -> bool:
        """Whether no entry is below zero."""
        return self.finite and self.lower >= 0

    def exceeds(self, other: Value) -> bool:
        """Whether c times this tensor, broadcast against ``other``, is above the magnitude of ``other``."""
        return _applies(self.over, self.shape, other)

    def cancels(self, other: Value) -> bool:
        """Whether this tensor times ``other``, where ``other`` is large, is bounded."""
        return _applies(self.inverse, self.shape, other)


def _applies(facts: frozenset[Power], shape: tuple[int, ...], other: Value) -> bool:
    padded = (1,) * (len(other.shape) - len(shape)) + shape
    return any(fact.key == other.key and fact.shape == padded and fact.degree >= 1 for fact in facts)


def constant(shape: tuple[int, ...], key: Hashable, value: Tensor, *, trained: bool) -> Value:
    """What is known of a tensor that does not depend on the input, from its numbers.

    The numbers themselves are used where no trainable parameter can change them.
    """
    if value.is_complex() or value.layout != torch.strided:
        return Value(shape, key, finite=False, varies=False, trained=trained)
    numbers = value.detach()
    finite = torch.isfinite(numbers) if numbers.is_floating_point() else torch.ones_like(numbers, dtype=torch.bool)
    holes = None
    if not bool(finite.all()):
        holes = numbers == -INF
        if trained or not bool((finite | holes).all()):
            return Value(shape, key, finite=False, varies=False, trained=trained)
        numbers = numbers[finite]
    apart = holes is None and bool((numbers != 0).all())
    common = Value(shape, key, below=True, above=True, apart=apart, varies=False, trained=trained, holes=holes)
    if trained:
        return common
    common = replace(common, numbers=value)
    if numbers.numel() == 0:
        return common
    return replace(common, lower=float(numbers.min()), upper=float(numbers.max()))


def powers(facts: frozenset[Power], exponent: float) -> frozenset[Power]:
    """The comparisons of a tensor raised to a positive power."""
    return frozenset(replace(fact, degree=fact.degree * exponent) for fact in facts)


def add_down(a: float, b: float) -> float:
    """A sum rounded down, so that rounding cannot make a lower limit too high."""
    total = a + b
    return total if a == 0 or b == 0 or math.isinf(total) else math.nextafter(total, -INF)


def add_up(a: float, b: float) -> float:
    """A sum rounded up."""
    return -add_down(-a, -b)


def kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a reduction over axes that are kept with size one."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
