"""Multipliers of a block: fixed numbers, numbers that depend on the depth, and learned ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from normplace.errors import UsageError, expect_choice, expect_number


@dataclass(frozen=True)
class Power:
    """A number that depends on the layer or the depth: ``(times * of)^exponent``, or ``ln(times * of)^exponent``.

    Args:
        of: ``layer`` (l, counted from 1) or ``depth`` (L).
        exponent: The exponent.
        times: Factor inside the power.
        log: Whether to take the logarithm before the power.

    Examples:
        >>> alpha = Power("depth", 1 / 4, times=2)
        >>> str(alpha), round(alpha.at(layer=1, depth=8), 3)
        ('(2L)^(1/4)', 2.0)
    """

    of: str
    exponent: float
    times: float = 1.0
    log: bool = False

    def __post_init__(self) -> None:
        expect_choice("quantity", self.of, ("layer", "depth"))
        expect_number("the exponent of a power", self.exponent)
        expect_number("the factor inside a power", self.times, 0, above=True)
        if self.log and not self.times > 1:
            raise UsageError(f"the factor inside a logarithm must be above 1 to keep it positive, got {self.times}.")

    def at(self, layer: int, depth: int) -> float:
        """Its value in one layer."""
        base = self.times * (layer if self.of == "layer" else depth)
        return (math.log(base) if self.log else base) ** self.exponent

    def __str__(self) -> str:
        letter = "l" if self.of == "layer" else "L"
        base = letter if self.times == 1 else f"({self.times:g}{letter})"
        base = f"ln{base}" if self.log else base
        exponent = Fraction(self.exponent).limit_denominator(64)
        return base if exponent == 1 else f"{base}^({exponent})"


@dataclass(frozen=True)
class LearnedScale:
    """A trained multiplier of the branch or of the skip.

    Args:
        per_channel: One value per feature (LayerScale) instead of a single one (ReZero).
        init: Initial value.
    """

    per_channel: bool = False
    init: float = 0.0

    def __post_init__(self) -> None:
        expect_number("the init of a learned scale", self.init)


Number = float | Power


def value_at(number: Number, layer: int, depth: int) -> float:
    """The value of a number in one layer."""
    return number.at(layer, depth) if isinstance(number, Power) else float(number)


def scale_at(scale: Number | LearnedScale, layer: int, depth: int) -> float | LearnedScale:
    """The value of a multiplier in one layer; a learned one is returned unchanged."""
    return scale if isinstance(scale, LearnedScale) else value_at(scale, layer, depth)


def resolved(number: Number | LearnedScale) -> float:
    """A fixed number of a spec that :meth:`BlockSpec.at` returned."""
    assert not isinstance(number, Power | LearnedScale)
    return number


def fixed_part(scale: Number | LearnedScale) -> float:
    """The fixed multiplier of a resolved spec: the number itself, or 1 where the multiplier is learned."""
    return 1.0 if isinstance(scale, LearnedScale) else resolved(scale)
