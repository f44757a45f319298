"""Where norms stand around a residual branch, as a value.

::

    x ──┬───────────────────────────(skip)──┐
        └─ [input] ─ F … [inner] … ─ [output] ─ (branch) ─(+)─ [stream] ── x'
    embedding ─ [embedding] ─ x0 ………………………… xL ─ [final] ─ head

:class:`Block` is one block of the drawing; :class:`Placement` is the rule that gives the block at every depth. Both are
frozen, compare by value and refuse to be built where they contradict themselves. :mod:`normplace.presets` names the
published ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from normplace.errors import UsageError, unknown

BLOCK_SLOTS = ("input", "inner", "output", "stream")
NETWORK_SLOTS = ("embedding", "final")


@dataclass(frozen=True)
class Power:
    """A number that depends on where the block is: ``(times * of)^exponent``.

    Args:
        of: ``layer`` (l, counted from 1) or ``depth`` (L).
        exponent: The power.
        times: The factor inside it.

    Example:
        >>> alpha = Power("depth", 1 / 4, times=2)
        >>> str(alpha), round(alpha.at(layer=1, depth=8), 3)
        ('(2L)^(1/4)', 2.0)
    """

    of: str
    exponent: float
    times: float = 1.0

    def __post_init__(self) -> None:
        if self.of not in ("layer", "depth"):
            raise unknown("quantity", self.of, ("layer", "depth"))
        if not self.times > 0:
            raise UsageError(f"the factor inside a power must be positive, got {self.times}.")

    def at(self, layer: int, depth: int) -> float:
        """Its value in one block."""
        return (self.times * (layer if self.of == "layer" else depth)) ** self.exponent

    def __str__(self) -> str:
        letter = "l" if self.of == "layer" else "L"
        base = letter if self.times == 1 else f"({self.times:g}{letter})"
        exponent = Fraction(self.exponent).limit_denominator(64)
        return base if exponent == 1 else f"{base}^({exponent})"


Number = float | Power


def _value(number: Number, layer: int, depth: int) -> float:
    return number.at(layer, depth) if isinstance(number, Power) else float(number)


def resolved(number: Number) -> float:
    """A number of a block that :meth:`Block.at` has worked out."""
    assert not isinstance(number, Power)
    return number


def _times(number: Number, term: str) -> str:
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


@dataclass(frozen=True)
class Block:
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

    def __post_init__(self) -> None:
        for name in ("skip", "input_scale", "init_gain"):
            number = getattr(self, name)
            if isinstance(number, Power):
                continue
            least = 0 if name == "skip" else math.nextafter(0, 1)
            if not (math.isfinite(number) and number >= least):
                kind = "zero or more" if name == "skip" else "positive"
                raise UsageError(f"{name} must be {kind} and finite, got {number}.")
        if self.input_scale != 1 and not self.input:
            raise UsageError(
                "input_scale multiplies the input norm's result, but there is no input norm: set input=True."
            )
        if self.skip_normed and not self.input:
            raise UsageError("skip_normed takes the skip after the input norm, but there is none: set input=True.")
        if self.is_plain and isinstance(self.branch, LearnedScale):
            raise UsageError("a learned branch scale weighs the branch against the skip, but skip is 0: keep branch=1.")
        if self.is_plain and self.output and self.stream:
            raise UsageError("without a skip the output and stream norms follow each other directly: keep one of them.")
        if self.is_plain and self.skip_normed:
            raise UsageError("skip_normed says where the skip starts, but skip is 0: there is none.")

    @property
    def is_plain(self) -> bool:
        """Whether the block has no skip."""
        return self.skip == 0

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

    def without_norms(self) -> Block:
        """The same skip and branch with every slot empty."""
        return dataclasses.replace(
            self, input=False, inner=(), output=False, stream=False, input_scale=1.0, skip_normed=False
        )

    def at(self, layer: int, depth: int) -> Block:
        """The block with its depth-dependent numbers worked out."""
        branch = self.branch if isinstance(self.branch, LearnedScale) else _value(self.branch, layer, depth)
        return dataclasses.replace(
            self,
            skip=_value(self.skip, layer, depth),
            input_scale=_value(self.input_scale, layer, depth),
            branch=branch,
            init_gain=_value(self.init_gain, layer, depth),
        )

    def equation(self, scaled: Mapping[str, str] | None = None) -> str:
        """The block's arithmetic, ``x`` the stream, ``F`` the branch, ``N`` a norm.

        Args:
            scaled: For a slot, the side of its norm where a scale ``s`` stands.
        """
        sides = scaled or {}

        def normed(slot: str, term: str) -> str:
            side = sides.get(slot)
            if side == "before":
                return f"N(s {_grouped(term)})"
            return f"s N({term})" if side == "after" else f"N({term})"

        read = _times(self.input_scale, normed("input", "x")) if self.input else "x"
        branch = "F" if not self.inner else f"F[N: {', '.join(self.inner)}]"
        out = f"{branch}({read})"
        if self.output:
            out = normed("output", out)
        out = f"g {out}" if isinstance(self.branch, LearnedScale) else _times(self.branch, out)
        skip = normed("input", "x") if self.skip_normed else "x"
        total = out if self.is_plain else f"{_times(self.skip, skip)} + {out}"
        return normed("stream", total) if self.stream else total


def _grouped(term: str) -> str:
    return f"({term})" if " + " in term else term


@dataclass(frozen=True)
class Placement:
    """The rule that says which block stands at which depth, and whether the network's ends are normalized.

    Args:
        segments: (share of the depth at which it ends, block) pairs; most placements have one, ending at 1.
        embedding: Norm on the embedding.
        final: Norm before the head.
        name: What to call it.

    Example:
        >>> Placement.named("peri").equation()
        'x + N(F(N(x)))'
        >>> Placement.named("deepnorm").equation(layer=1, depth=8)
        'N(2 x + F(x))'
    """

    segments: tuple[tuple[float, Block], ...]
    embedding: bool = False
    final: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        ends = [end for end, _ in self.segments]
        if not ends or ends[-1] != 1 or any(a >= b for a, b in zip([0, *ends], ends, strict=False)):
            raise UsageError(f"segments must end at increasing shares of the depth, the last at 1, got {ends}.")
        if self.final and self.segments[-1][1].stream:
            raise UsageError(
                "the last block already normalizes the stream, so a final norm would normalize twice: "
                "set final=False, or leave the stream slot empty."
            )

    @classmethod
    def uniform(
        cls, block: Block, *, embedding: bool = False, final: bool = False, name: str | None = None
    ) -> Placement:
        """The same block at every depth."""
        return cls(((1.0, block),), embedding, final, name)

    @classmethod
    def named(cls, name: str, **options: Any) -> Placement:
        """The published placement of that name; see :mod:`normplace.presets`.

        Args:
            name: A preset or one of its aliases.
            **options: What that preset lets a caller choose, such as ``fraction`` of ``mix``.

        Raises:
            UsageError: If there is no such preset or option.
        """
        from normplace.presets import build_preset

        return build_preset(name, options)

    def at(self, layer: int, depth: int) -> Block:
        """The block of ``layer`` (counted from 1) in a network of ``depth``.

        Raises:
            UsageError: If the layer is outside the network.
        """
        if not 1 <= layer <= depth:
            raise UsageError(f"layer must lie between 1 and the depth {depth}, got {layer}.")
        block = next(block for end, block in self.segments if layer <= math.floor(end * depth))
        return block.at(layer, depth)

    def blocks(self, depth: int) -> Iterator[Block]:
        """The block of every layer in turn."""
        return (self.at(layer, depth) for layer in range(1, depth + 1))

    def equation(self, layer: int | None = None, depth: int | None = None) -> str:
        """The arithmetic of one block, or of the rule when no layer is given.

        Args:
            layer: Which block, counted from 1.
            depth: How many there are.
        """
        if layer is not None and depth is not None:
            return self.at(layer, depth).equation()
        parts, start = [], "0"
        for end, block in self.segments:
            stop = _times(float(end), "L")
            condition = f" for {start} < l <= {stop}" if len(self.segments) > 1 else ""
            parts.append(block.equation() + condition)
            start = stop
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form that :meth:`from_dict` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Placement:
        """The placement that :meth:`to_dict` wrote.

        Raises:
            UsageError: If a key is unknown.
        """
        fields = _checked(cls, data)
        fields["segments"] = tuple((float(end), _block_from_dict(block)) for end, block in data["segments"])
        return cls(**fields)


def _checked(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(cls)]
    for key in data:
        if key not in known:
            raise unknown(f"key of a {cls.__name__.lower()}:", key, known)
    return dict(data)


def _block_from_dict(data: Mapping[str, Any]) -> Block:
    fields = _checked(Block, data)
    fields["inner"] = tuple(fields.get("inner", ()))
    for name, value in fields.items():
        if isinstance(value, Mapping):
            kind = LearnedScale if "per_channel" in value else Power
            fields[name] = kind(**_checked(kind, value))
    return Block(**fields)
