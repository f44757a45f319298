"""Equations of residual blocks as expression trees, printed like ``x + N(F(N(x)))``.

``x`` is the stream, ``F`` a branch, ``N`` a norm, ``D`` the damping of GPAS, ``g`` a learned multiplier and ``s`` a
:class:`normplace.Scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normplace.placement.factors import LearnedScale, Number, Power

if TYPE_CHECKING:
    from normplace.placement.spec import BlockSpec


@dataclass(frozen=True)
class Symbol:
    """A variable, such as the stream ``x``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Apply:
    """A function of one argument, such as ``N(x)`` or ``F[N: q, k](x)``."""

    function: str
    argument: Expression

    def __str__(self) -> str:
        return f"{self.function}({self.argument})"


@dataclass(frozen=True)
class Product:
    """A multiplier and a term, such as ``2 x`` or ``s (x + F(x))``."""

    factor: str
    term: Expression

    def __str__(self) -> str:
        return f"{self.factor} ({self.term})" if isinstance(self.term, Sum) else f"{self.factor} {self.term}"


@dataclass(frozen=True)
class Sum:
    """Terms added up, such as ``x + F(x)``."""

    terms: tuple[Expression, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))


Expression = Symbol | Apply | Product | Sum
Sides = Mapping[str, str]
"""For the slot that has a :class:`normplace.Scale`: ``before`` or ``after`` its norm."""
X = Symbol("x")


def number_text(number: Number) -> str:
    """A number as equations print it."""
    return str(number) if isinstance(number, Power) else f"{number:.4g}"


def times(scale: Number | LearnedScale, term: Expression) -> Expression:
    """``scale * term``; a scale of 1 is not printed and a learned one is ``g``."""
    if isinstance(scale, LearnedScale):
        return Product("g", term)
    return term if scale == 1 else Product(number_text(scale), term)


def normalized(term: Expression, norm: str = "N", side: str | None = None) -> Expression:
    """``N(term)``, with a scale ``s`` before or after the norm if ``side`` is given."""
    if side == "before":
        return Apply(norm, Product("s", term))
    return Product("s", Apply(norm, term)) if side == "after" else Apply(norm, term)


def branch_term(
    spec: BlockSpec, *, stream: Expression = X, branch: str = "F", input_norm: str = "N", sides: Sides | None = None
) -> Expression:
    """What a block adds to its skip, such as ``N(F(N(x)))``."""
    sides = sides or {}
    read = stream
    if spec.input:
        read = times(spec.input_scale, normalized(stream, input_norm, sides.get("input")))
    inside = [f"N: {', '.join(spec.inner)}"] if spec.inner else []
    inside += [f"g: {', '.join(spec.inner_scale)}"] if spec.inner_scale else []
    out: Expression = Apply(f"{branch}[{'; '.join(inside)}]" if inside else branch, read)
    out = normalized(out, side=sides.get("output")) if spec.output else out
    return times(spec.branch_scale, out)


def skip_term(spec: BlockSpec, *, projected: bool = False, sides: Sides | None = None) -> Expression:
    """The skip of a block with its multiplier, such as ``2 x``."""
    skip: Expression = normalized(X, side=(sides or {}).get("input")) if spec.skip_normed else X
    skip = Apply("D", skip) if spec.damped and spec.stream else skip
    skip = Apply("P", skip) if projected else skip
    return times(spec.skip_scale, skip)


def block_term(
    spec: BlockSpec, *, projected: bool = False, extra_residual: str | None = None, sides: Sides | None = None
) -> Expression:
    """The next value of the stream."""
    total = branch_term(spec, sides=sides)
    if not spec.is_plain:
        extra = () if extra_residual is None else (Symbol(extra_residual),)
        total = Sum((*extra, skip_term(spec, projected=projected, sides=sides), total))
    total = Apply("D", total) if spec.damped and not spec.stream else total
    return normalized(total, side=(sides or {}).get("stream")) if spec.stream else total


def with_gain(spec: BlockSpec, equation: str) -> str:
    """The equation, followed by the initial gain of the input norm where the spec sets it."""
    return equation if spec.input_gain == 1 else f"{equation}, gain of N from {number_text(spec.input_gain)}"
