"""One block of a residual network as a value: a branch, its add, and the norms and scales around them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from normplace.errors import UsageError, expect_number, unknown

BLOCK_SLOTS = ("input", "inner", "output", "stream")


@dataclass(frozen=True)
class Power:
    """A number that depends on where the block is: ``(times * of)^exponent``, or ``ln(times * of)^exponent``.

    Args:
        of: ``layer`` (l, counted from 1) or ``depth`` (L).
        exponent: The power.
        times: The factor inside it.
        log: Whether the logarithm is taken first.

    Example:
        >>> alpha = Power("depth", 1 / 4, times=2)
        >>> str(alpha), round(alpha.at(layer=1, depth=8), 3)
        ('(2L)^(1/4)', 2.0)
    """

    of: str
    exponent: float
    times: float = 1.0
    log: bool = False

    def __post_init__(self) -> None:
        if self.of not in ("layer", "depth"):
            raise unknown("quantity", self.of, ("layer", "depth"))
        expect_number("the exponent of a power", self.exponent)
        expect_number("the factor inside a power", self.times, 0, above=True)
        if self.log and not self.times > 1:
            raise UsageError(f"the factor inside a logarithm must be above 1 to keep it positive, got {self.times}.")

    def at(self, layer: int, depth: int) -> float:
        """Its value in one block."""
        base = self.times * (layer if self.of == "layer" else depth)
        return (math.log(base) if self.log else base) ** self.exponent

    def __str__(self) -> str:
        letter = "l" if self.of == "layer" else "L"
        base = letter if self.times == 1 else f"({self.times:g}{letter})"
        base = f"ln{base}" if self.log else base
        exponent = Fraction(self.exponent).limit_denominator(64)
        return base if exponent == 1 else f"{base}^({exponent})"


Number = float | Power


def value_at(number: Number, layer: int, depth: int) -> float:
    """A number in one block."""
    return number.at(layer, depth) if isinstance(number, Power) else float(number)


def resolved(number: Number) -> float:
    """A number of a block that :meth:`Block.at` has worked out."""
    assert not isinstance(number, Power)
    return number


def times(number: Number, term: str) -> str:
    """``number * term`` as an equation writes it."""
    if isinstance(number, Power):
        return f"{number} {term}"
    return term if number == 1 else f"{number:.4g} {term}"


@dataclass(frozen=True)
class LearnedScale:
    """A trained multiplier of the branch.

    Args:
        per_channel: One value per feature (LayerScale) rather than one in all (ReZero).
        init: Where training starts.
    """

    per_channel: bool = False
    init: float = 0.0

    def __post_init__(self) -> None:
        expect_number("the init of a learned scale", self.init)


@dataclass(frozen=True)
class BlockSpec:
    """The norms and scales around one branch and its add.

    Args:
        input: Norm on what the branch reads.
        inner: Names of the places inside the branch that hold a norm; the branch says which it offers.
        output: Norm on what the branch adds.
        stream: Norm on the sum.
        skip: Multiplier of the skip; 0 means there is none, and the block is a plain layer.
        input_scale: Fixed multiplier after the input norm.
        branch: Multiplier of the branch after its output norm, fixed or learned.
        init_gain: Factor on the branch's initial weights.
        skip_normed: Take the skip after the input norm instead of before it.
        input_gain: Where the learned gain of the input norm starts.
        inner_scale: Names of the places inside the branch that hold a learned multiplier, which starts at 1.
        damped: Shrink the sum in the forward pass alone (GPAS): ``D(y) = y - silu(g) sg(y)`` with a learned g from 0
            and sg without a gradient. Where a norm on the sum would undo that, the skip is shrunk instead.
        skip_scale: A learned multiplier of the skip.
    """

    input: bool = False
    inner: tuple[str, ...] = ()
    output: bool = False
    stream: bool = False
    skip: Number = 1.0
    input_scale: Number = 1.0
    branch: Number | LearnedScale = 1.0
    init_gain: Number = 1.0
    skip_normed: bool = False
    input_gain: Number = 1.0
    inner_scale: tuple[str, ...] = ()
    damped: bool = False
    skip_scale: LearnedScale | None = None

    def __post_init__(self) -> None:
        for name in ("inner", "inner_scale"):
            names = getattr(self, name)
            if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
                raise UsageError(f"{name} must be a tuple of names such as ('q', 'k'), got {names!r}.")
        if not isinstance(self.branch, Power | LearnedScale):
            expect_number("branch", self.branch)
        if not isinstance(self.skip_scale, LearnedScale | None):
            raise UsageError(f"skip_scale must be a LearnedScale or None, got {self.skip_scale!r}.")
        for name in ("skip", "input_scale", "init_gain", "input_gain"):
            number = getattr(self, name)
            if isinstance(number, Power):
                continue
            expect_number(name, number, 0, above=name != "skip")
        if self.input_scale != 1 and not self.input:
            raise UsageError(
                "input_scale multiplies the input norm's result, but there is no input norm: set input=True."
            )
        if self.input_gain != 1 and not self.input:
            raise UsageError("input_gain starts the gain of the input norm, but there is none: set input=True.")
        if self.skip_normed and not self.input:
            raise UsageError("skip_normed takes the skip after the input norm, but there is none: set input=True.")
        if self.is_plain and isinstance(self.branch, LearnedScale):
            raise UsageError("a learned branch scale weighs the branch against the skip, but skip is 0: keep branch=1.")
        if self.is_plain and self.output and self.stream:
            raise UsageError("without a skip the output and stream norms follow each other directly: keep one of them.")
        if self.is_plain and self.skip_normed:
            raise UsageError("skip_normed says where the skip starts, but skip is 0: there is none.")
        if self.is_plain and self.damped:
            raise UsageError("damped shrinks what a skip carries on, but skip is 0: there is none.")
        if self.is_plain and self.skip_scale is not None:
            raise UsageError("skip_scale multiplies the skip, but skip is 0: there is none.")

    @property
    def is_plain(self) -> bool:
        """Whether the block has no skip."""
        return self.skip == 0

    @property
    def keeps_skip(self) -> bool:
        """Whether the skip is added as it comes."""
        return self.skip == 1 and self.skip_scale is None and not self.skip_normed and not self.damped

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that hold a norm, inner ones as ``inner.name``."""
        held: list[str] = []
        for slot in BLOCK_SLOTS:
            if slot == "inner":
                held += [f"inner.{name}" for name in self.inner]
            elif getattr(self, slot):
                held.append(slot)
        return tuple(held)

    def without_norms(self) -> BlockSpec:
        """The same skip and branch with every slot empty."""
        return dataclasses.replace(
            self, input=False, inner=(), output=False, stream=False, input_scale=1.0, input_gain=1.0, skip_normed=False
        )

    def at(self, layer: int, depth: int) -> BlockSpec:
        """The block with its depth-dependent numbers worked out."""
        branch = self.branch if isinstance(self.branch, LearnedScale) else value_at(self.branch, layer, depth)
        return dataclasses.replace(
            self,
            skip=value_at(self.skip, layer, depth),
            input_scale=value_at(self.input_scale, layer, depth),
            branch=branch,
            init_gain=value_at(self.init_gain, layer, depth),
            input_gain=value_at(self.input_gain, layer, depth),
        )

    def equation(self, scaled: Mapping[str, str] | None = None, also: str = "") -> str:
        """The block's arithmetic, ``x`` the stream, ``F`` the branch, ``N`` a norm.

        Args:
            scaled: For a slot, the side of its norm where a scale ``s`` stands.
            also: What the stack adds to the skip.
        """
        sides = scaled or {}

        def normed(slot: str, term: str) -> str:
            side = sides.get(slot)
            if side == "before":
                return f"N(s {_grouped(term)})"
            return f"s N({term})" if side == "after" else f"N({term})"

        read = times(self.input_scale, normed("input", "x")) if self.input else "x"
        held = [f"N: {', '.join(self.inner)}"] if self.inner else []
        held += [f"g: {', '.join(self.inner_scale)}"] if self.inner_scale else []
        branch = f"F[{'; '.join(held)}]" if held else "F"
        out = f"{branch}({read})"
        if self.output:
            out = normed("output", out)
        out = f"g {out}" if isinstance(self.branch, LearnedScale) else times(self.branch, out)
        skip = normed("input", "x") if self.skip_normed else "x"
        skip = f"D({skip})" if self.damped and self.stream else skip
        skip = skip if self.skip_scale is None else f"g {skip}"
        total = out if self.is_plain else f"{also and also + ' + '}{times(self.skip, skip)} + {out}"
        total = f"D({total})" if self.damped and not self.stream else total
        total = normed("stream", total) if self.stream else total
        return total if self.input_gain == 1 else f"{total}, gain of N from {_shown(self.input_gain)}"


def _shown(number: Number) -> str:
    return str(number) if isinstance(number, Power) else f"{number:.4g}"


def _grouped(term: str) -> str:
    return f"({term})" if " + " in term else term
