"""One residual block as a value: which slots hold a norm, and the multipliers of the skip and the branch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normplace.errors import UsageError, expect_number
from normplace.placement.equations import block_term, with_gain
from normplace.placement.factors import LearnedScale, Number, Power, scale_at, value_at

BLOCK_SLOTS = ("input", "inner", "output", "stream")


def short_repr(value: Any) -> str:
    """The call that builds a dataclass, without the fields that have their defaults."""
    fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
    changed = ", ".join(f"{field.name}={content!r}" for field, content in fields if content != field.default)
    return f"{type(value).__name__}({changed})"


@dataclass(frozen=True)
class BlockSpec:
    """The norms and scales around one branch and its residual add.

    Args:
        input: Whether there is a norm on the branch's input.
        inner: Names of the norm sites inside the branch that hold a norm.
        output: Whether there is a norm on the branch's output.
        stream: Whether there is a norm on the sum.
        skip_scale: Multiplier of the skip, fixed or learned; 0 means a plain layer without a skip.
        input_scale: Fixed multiplier of the input norm's result.
        branch_scale: Multiplier of the branch after its output norm, fixed or learned.
        init_gain: Factor on the branch's initial weights.
        skip_normed: Whether the skip starts after the input norm instead of before it.
        input_gain: Initial value of the input norm's learned gain.
        inner_scale: Names of the scale sites inside the branch that hold a learned multiplier, initially 1.
        damped: Whether the sum is shrunk in the forward pass only (GPAS): ``D(y) = y - silu(g) sg(y)`` with a learned
            g, initially 0, and sg the stop-gradient. A stream norm would undo that, so with one the skip is shrunk.

    Raises:
        UsageError: If the fields contradict each other.
    """

    input: bool = False
    inner: tuple[str, ...] = ()
    output: bool = False
    stream: bool = False
    skip_scale: Number | LearnedScale = 1.0
    input_scale: Number = 1.0
    branch_scale: Number | LearnedScale = 1.0
    init_gain: Number = 1.0
    skip_normed: bool = False
    input_gain: Number = 1.0
    inner_scale: tuple[str, ...] = ()
    damped: bool = False

    def __repr__(self) -> str:
        return short_repr(self)

    def __post_init__(self) -> None:
        self._check_types()
        if not self.input:
            for name, value in (("input_scale", self.input_scale), ("input_gain", self.input_gain)):
                if value != 1:
                    raise UsageError(f"{name} belongs to the input norm, but there is no input norm: set input=True.")
            if self.skip_normed:
                raise UsageError("skip_normed starts the skip after the input norm, but there is none: set input=True.")
        if not self.is_plain:
            return
        if isinstance(self.branch_scale, LearnedScale):
            raise UsageError(
                "a learned branch_scale weighs the branch against a skip, but skip_scale is 0: leave it out."
            )
        if self.output and self.stream:
            raise UsageError("without a skip, the output and stream norms are back to back: keep one of them.")
        if self.skip_normed or self.damped:
            name = "skip_normed" if self.skip_normed else "damped"
            raise UsageError(f"{name} changes the skip, but skip_scale is 0, so there is none: leave {name} out.")

    def _check_types(self) -> None:
        for name in ("inner", "inner_scale"):
            names = getattr(self, name)
            if not isinstance(names, tuple) or not all(isinstance(site, str) for site in names):
                raise UsageError(f"{name} must be a tuple of names such as ('q', 'k'), got {names!r}.")
        if not isinstance(self.branch_scale, Power | LearnedScale):
            expect_number("branch_scale", self.branch_scale)
        if not isinstance(self.skip_scale, Power | LearnedScale):
            expect_number("skip_scale", self.skip_scale, 0)
        for name in ("input_scale", "init_gain", "input_gain"):
            if not isinstance(number := getattr(self, name), Power):
                expect_number(name, number, 0, above=True)

    @property
    def is_plain(self) -> bool:
        """Whether the block has no skip."""
        return self.skip_scale == 0

    @property
    def keeps_skip(self) -> bool:
        """Whether the skip is added unchanged."""
        return self.skip_scale == 1 and not self.skip_normed and not self.damped

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that hold a norm, inner ones as ``inner.name``."""
        slots: list[str] = []
        for slot in BLOCK_SLOTS:
            if slot == "inner":
                slots += [f"inner.{name}" for name in self.inner]
            elif getattr(self, slot):
                slots.append(slot)
        return tuple(slots)

    def without_norms(self) -> BlockSpec:
        """The same skip and branch without norms."""
        return dataclasses.replace(
            self, input=False, inner=(), output=False, stream=False, input_scale=1.0, input_gain=1.0, skip_normed=False
        )

    def at(self, layer: int, depth: int) -> BlockSpec:
        """The spec of one layer, with every :class:`Power` replaced by its value."""
        numbers = (self.skip_scale, self.input_scale, self.branch_scale, self.init_gain, self.input_gain)
        if all(type(number) in (float, LearnedScale) for number in numbers):
            return self
        return dataclasses.replace(
            self,
            skip_scale=scale_at(self.skip_scale, layer, depth),
            input_scale=value_at(self.input_scale, layer, depth),
            branch_scale=scale_at(self.branch_scale, layer, depth),
            init_gain=value_at(self.init_gain, layer, depth),
            input_gain=value_at(self.input_gain, layer, depth),
        )

    def equation(self, sides: Mapping[str, str] | None = None, extra_residual: str | None = None) -> str:
        """The block's equation; ``x`` is the stream, ``F`` the branch, ``N`` a norm.

        Args:
            sides: For a slot with a scale ``s``: ``before`` or ``after`` its norm.
            extra_residual: Name of a value that the stack adds to the sum.
        """
        return with_gain(self, str(block_term(self, extra_residual=extra_residual, sides=sides)))
