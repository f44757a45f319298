"""Facts about a tensor that hold for every input of a network.

A :class:`Value` describes all entries of a tensor over *all* real inputs x of one shape. Its facts hold for all finite
values of the trainable parameters. Their constants ("bounded below", "bounded away from zero") may depend on the
parameters but never on x. Arithmetic is exact: a proof is about the real function, not about overflow.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

INF = math.inf
Statistic = tuple[Hashable, tuple[int, ...]]
"""A mean or largest entry: the identity of the tensor it is taken of, and the axes."""


@dataclass(frozen=True)
class PowerBound:
    """A comparison with a power of a tensor: the entries of tensor ``key`` to the power ``degree``.

    The comparison is elementwise after broadcasting from ``shape``: a mean over the last axis of a (4, 3) tensor is
    compared with that tensor in shape (4, 1).
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
        lower: A lower limit of the entries; -inf if unknown.
        upper: An upper limit of the entries; inf if unknown.
        bounded_below: Whether the entries are bounded below, by a constant that may depend on the parameters.
        bounded_above: Whether they are bounded above.
        positive: Whether they are bounded below by a constant above zero.
        away_from_zero: Whether their magnitude is bounded below by a constant above zero; of a tensor that depends on
            parameters only, whether no entry is zero at the current ones.
        finite: Whether every entry is proven finite.
        depends_on_input: Whether the tensor depends on the network's input.
        depends_on_parameters: Whether it depends on a trainable parameter.
        bounded_gradient: Whether its gradient with respect to the trainable parameters is bounded.
        dominates: Powers p with p ≤ c · this tensor, for some constant c.
        decays_like: Powers p with |this tensor| ≤ c / p, for some constant c.
        multiple_of: The identity of a tensor t of the same shape with |this tensor| ≤ c · |t|, if one is known.
        mean: If this is a mean: of which tensor, and over which axes.
        largest: The same if it is a largest entry.
        minus_inf: A fixed mask of the entries that are -inf, if there are any.
        fixed_tensor: The tensor itself, if neither inputs nor training change it.
    """

    shape: tuple[int, ...]
    key: Hashable
    lower: float = -INF
    upper: float = INF
    bounded_below: bool = False
    bounded_above: bool = False
    positive: bool = False
    away_from_zero: bool = False
    finite: bool = True
    depends_on_input: bool = True
    depends_on_parameters: bool = False
    bounded_gradient: bool = True
    dominates: frozenset[PowerBound] = frozenset()
    decays_like: frozenset[PowerBound] = frozenset()
    multiple_of: Hashable = None
    mean: Statistic | None = None
    largest: Statistic | None = None
    minus_inf: Tensor | None = field(default=None, compare=False)
    fixed_tensor: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Derive the weaker facts from the stronger ones."""
        if not self.finite:
            for name in ("bounded_below", "bounded_above", "positive", "away_from_zero"):
                object.__setattr__(self, name, False)
            object.__setattr__(self, "lower", -INF)
            object.__setattr__(self, "upper", INF)
            object.__setattr__(self, "dominates", frozenset())
            object.__setattr__(self, "decays_like", frozenset())
            object.__setattr__(self, "bounded_gradient", not self.depends_on_parameters)
            return
        object.__setattr__(self, "bounded_below", self.bounded_below or self.lower > -INF or self.positive)
        object.__setattr__(self, "bounded_above", self.bounded_above or self.upper < INF)
        object.__setattr__(self, "positive", self.positive or self.lower > 0)
        object.__setattr__(self, "away_from_zero", self.away_from_zero or self.positive or self.upper < 0)
        if self.positive:
            object.__setattr__(self, "lower", max(self.lower, 0.0))
        if not self.depends_on_parameters:
            object.__setattr__(self, "bounded_gradient", True)

    @property
    def bounded(self) -> bool:
        """Whether every entry is finite and bounded."""
        return self.finite and self.bounded_below and self.bounded_above and self.minus_inf is None

    @property
    def nonnegative(self) -> bool:
        """Whether no entry is below zero."""
        return self.finite and self.lower >= 0

    @property
    def never_zero(self) -> bool:
        """Whether the magnitude is bounded below by a constant above zero at all parameters, not only current ones."""
        return self.away_from_zero and (self.positive or self.upper < 0 or not self.depends_on_parameters)

    def exceeds(self, other: Value) -> bool:
        """Whether |other| ≤ c · this tensor, after broadcasting, for some constant c."""
        return _applies(self.dominates, self.shape, other)

    def cancels(self, other: Value) -> bool:
        """Whether this tensor times ``other`` stays bounded where ``other`` is large."""
        return _applies(self.decays_like, self.shape, other)


def _applies(facts: frozenset[PowerBound], shape: tuple[int, ...], other: Value) -> bool:
    padded = (1,) * (len(other.shape) - len(shape)) + shape
    keys = {other.key, other.multiple_of}
    return any(fact.key in keys and fact.shape == padded and fact.degree >= 1 for fact in facts)


def constant(key: Hashable, tensor: Tensor, *, depends_on_parameters: bool) -> Value:
    """Facts about a tensor that does not depend on the input, read from its entries.

    Exact limits are kept only if training cannot change the entries.
    """
    shape = tuple(tensor.shape)
    facts = Value(shape, key, depends_on_input=False, depends_on_parameters=depends_on_parameters)
    if tensor.is_complex() or tensor.layout != torch.strided:
        return replace(facts, finite=False)
    entries = tensor.detach()
    finite = torch.isfinite(entries) if entries.is_floating_point() else torch.ones_like(entries, dtype=torch.bool)
    minus_inf = None
    if not bool(finite.all()):
        minus_inf = entries == -INF
        if depends_on_parameters or not bool((finite | minus_inf).all()):
            return replace(facts, finite=False)
        entries = entries[finite]
    away_from_zero = minus_inf is None and bool((entries != 0).all())
    facts = replace(facts, bounded_below=True, bounded_above=True, away_from_zero=away_from_zero, minus_inf=minus_inf)
    if depends_on_parameters:
        return facts
    facts = replace(facts, fixed_tensor=tensor)
    if entries.numel() == 0:
        return facts
    return replace(facts, lower=float(entries.min()), upper=float(entries.max()))


def in_dtype(value: Value, dtype: torch.dtype) -> Value:
    """What remains of the facts of real numbers after storing them in ``dtype``.

    Storing reals as whole numbers truncates them, and those outside the range of the dtype wrap. Floating-point numbers
    are taken as reals.
    """
    if dtype.is_floating_point or not value.finite:
        return value
    lower, upper = (math.trunc(end) if math.isfinite(end) else end for end in (value.lower, value.upper))
    if dtype == torch.bool:
        lower, upper = 0, 1
    else:
        info = torch.iinfo(dtype)
        if not info.min <= lower <= upper <= info.max:
            lower, upper = -INF, INF
    return replace(
        value,
        lower=lower,
        upper=upper,
        positive=False,
        away_from_zero=False,
        dominates=frozenset(),
        decays_like=frozenset(),
        multiple_of=None,
    )


def scaled_degrees(facts: frozenset[PowerBound], exponent: float) -> frozenset[PowerBound]:
    """The comparisons after raising the tensor to a positive power."""
    return frozenset(replace(fact, degree=fact.degree * exponent) for fact in facts)


def add_down(a: float, b: float) -> float:
    """A + b rounded down, so that rounding cannot raise a lower limit."""
    total = a + b
    return total if a == 0 or b == 0 or math.isinf(total) else math.nextafter(total, -INF)


def add_up(a: float, b: float) -> float:
    """A + b rounded up."""
    return -add_down(-a, -b)


def keepdim_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a reduction over ``axes`` with ``keepdim=True``."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
