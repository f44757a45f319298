"""Where norms stand in a residual network, as a value.

::

    x ──┬───────────────────────────(skip)──┐
        └─ [input] ─ F … [inner] … ─ [output] ─ (branch) ─(+)─ [stream] ── x'
    embedding ─ [embedding] ─ x0 ………………………… xL ─ [final] ─ head

:class:`BlockSpec` is one block of the drawing; :class:`Placement` is the rule that gives the block at every depth, for
every kind of branch. Both are frozen, compare by value and refuse to be built where they contradict themselves.
:mod:`normplace.placement.presets` names the published ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from normplace.errors import UsageError, expect_number, expect_whole, unknown
from normplace.placement.spec import BlockSpec, LearnedScale, Power, times

NETWORK_SLOTS = ("embedding", "final")
STREAMS = {
    "one": "",
    "b2t": "x0 the layer's input",
    "dual": "x' = N(x + z), r' = r + z, out = x + N(r)",
    "siamese": "x' = N(x + (2l)^(-1/2) z), y' = y + z, out = x + N(y)",
}
"""What a stack carries from block to block, and what its equation says beside that of a block, or of its branch z."""


@dataclass(frozen=True)
class First:
    """A number of layers, where a share would depend on the depth.

    Args:
        layers: How many of the first layers are meant.
    """

    layers: int

    def __post_init__(self) -> None:
        expect_whole(1, **{"the number of layers of First": self.layers})


Segments = tuple[tuple[float | First, BlockSpec], ...]


@dataclass(frozen=True)
class Placement:
    """The rule that says which block stands at which depth, and whether the network's ends are normalized.

    Args:
        segments: (end, block) pairs, an end being a share of the depth or the :class:`First` few layers; most
            placements have one, ending at 1. Empty where ``kinds`` say it for each kind of branch.
        embedding: Norm on the embedding.
        final: Norm before the head.
        name: What to call it.
        kinds: The segments of each kind of branch, in the order in which a layer has them.
        streams: What the stack carries from block to block: ``one`` stream; ``b2t``, where a layer's input is added
            once more before its last norm; or two streams, ``dual`` or ``siamese``.

    Example:
        >>> Placement.named("peri").equation()
        'x + N(F(N(x)))'
        >>> Placement.named("deepnorm").equation(layer=1, depth=8)
        'N(2 x + F(x))'
        >>> Placement.named("hybrid").equation()
        'attention: x + F[N: q, k, v](x); mlp: N(x) + F(N(x))'
    """

    segments: Segments
    embedding: bool = False
    final: bool = False
    name: str | None = None
    kinds: tuple[tuple[str, Segments], ...] = ()
    streams: str = "one"

    def __post_init__(self) -> None:
        if bool(self.segments) == bool(self.kinds):
            raise UsageError("give segments for all branches, or kinds with segments for each kind, not both or none.")
        for _, segments in self._rules():
            _check_ends(segments)
        self._check_streams()
        last = [block for _, block in self._rules()[-1][1]][-1]
        if self.final and last.stream and self.streams in ("one", "b2t"):
            raise UsageError(
                "the last block already normalizes the stream, so a final norm would normalize twice: "
                "set final=False, or leave the stream slot empty."
            )

    def _check_streams(self) -> None:
        if self.streams not in STREAMS:
            raise unknown("rule of streams", self.streams, STREAMS)
        if self.streams == "b2t" and not all(block.stream for _, block in self._rules()[-1][1]):
            raise UsageError("b2t adds the layer's input before its last norm: set stream=True in the last block.")
        if self.streams in ("dual", "siamese"):
            if not self.final or not all(block.stream for block in self.every_block):
                raise UsageError(
                    f"{self.streams} norms one stream after every add and the other at the end: set stream=True in "
                    "every block, and final=True."
                )
            if not all(block.keeps_skip for block in self.every_block):
                raise UsageError(f"{self.streams} adds the branch to two streams as they are: leave the skip alone.")
        if self.streams == "siamese" and not all(block.input for block in self.every_block):
            raise UsageError("siamese norms the sum of both streams before each branch: set input=True in every block.")

    @property
    def every_block(self) -> tuple[BlockSpec, ...]:
        """Every block of the rule, its depth-dependent numbers not worked out."""
        return tuple(block for _, segments in self._rules() for _, block in segments)

    def _rules(self) -> tuple[tuple[str | None, Segments], ...]:
        return self.kinds or ((None, self.segments),)

    @classmethod
    def uniform(
        cls, block: BlockSpec, *, embedding: bool = False, final: bool = False, name: str | None = None
    ) -> Placement:
        """The same block at every depth."""
        return cls(((1.0, block),), embedding, final, name)

    @classmethod
    def by_kind(
        cls,
        kinds: Mapping[str, BlockSpec | Segments],
        *,
        embedding: bool = False,
        final: bool = False,
        name: str | None = None,
        streams: str = "one",
    ) -> Placement:
        """One block, or segments, for each kind of branch.

        Args:
            kinds: Blocks by kind, in the order in which a layer has them.
            embedding: As of the class, and so are the rest.
            final: Norm before the head.
            name: What to call it.
            streams: What the stack carries.
        """
        rules = tuple((kind, ((1.0, rule),) if isinstance(rule, BlockSpec) else rule) for kind, rule in kinds.items())
        return cls((), embedding, final, name, rules, streams)

    @classmethod
    def named(cls, name: str, **options: Any) -> Placement:
        """The published placement of that name; see :mod:`normplace.placement.presets`.

        Args:
            name: A preset or one of its aliases.
            **options: What that preset lets a caller choose, such as ``fraction`` of ``mix``.

        Raises:
            UsageError: If there is no such preset or option.
        """
        from normplace.placement.presets import build_preset

        return build_preset(name, options)

    @classmethod
    def of(cls, placement: str | Placement) -> Placement:
        """The placement itself, or the published one of that name.

        Raises:
            UsageError: If it is neither.
        """
        if isinstance(placement, str):
            return cls.named(placement)
        if not isinstance(placement, Placement):
            raise UsageError(f"placement must be a Placement or the name of a preset, got {placement!r}.")
        return placement

    def changed(self, change: Callable[[BlockSpec], BlockSpec], kind: str | None = None) -> Placement:
        """The same rule with every block changed, or every block around one kind of branch.

        Args:
            change: What to do to a block.
            kind: ``attention`` or ``mlp``, the kinds of a Transformer; None for all.
        """

        def through(segments: Segments) -> Segments:
            return tuple((end, change(block)) for end, block in segments)

        if kind is None:
            kinds = tuple((known, through(segments)) for known, segments in self.kinds)
            return replace(self, segments=through(self.segments), kinds=kinds)
        rules = dict(self.kinds) or dict.fromkeys(("attention", "mlp"), self.segments)
        if kind not in rules:
            raise unknown("kind of branch", kind, rules)
        return replace(self, segments=(), kinds=tuple({**rules, kind: through(rules[kind])}.items()))

    def at(self, layer: int, depth: int, kind: str | None = None) -> BlockSpec:
        """The block of ``layer`` (counted from 1) in a network of ``depth``.

        Args:
            layer: Which layer; in a Transformer one has an attention branch and an MLP branch.
            depth: How many there are.
            kind: Which kind of branch, where the placement tells them apart.

        Raises:
            UsageError: If the layer is outside the network, the placement does not know the kind, or no block alone
                can state it.
        """
        if self.streams != "one":
            raise UsageError(
                f"{self.name or 'this placement'} spans several blocks: build a stack that carries its streams, such "
                "as normplace.models.Transformer."
            )
        expect_whole(1, layer=layer, depth=depth)
        if layer > depth:
            raise UsageError(f"layer must lie between 1 and the depth {depth}, got {layer}.")
        rules = dict(self.kinds)
        if rules and kind not in rules:
            raise UsageError(
                f"{self.name or 'this placement'} tells {' and '.join(rules)} branches apart, so a branch must say "
                "which it is: give it the attribute kind, or choose a placement that is the same for all."
            )
        segments = rules[kind] if kind is not None and rules else self.segments
        block = next(block for end, block in segments if layer <= _layers(end, depth))
        return block.at(layer, depth)

    def blocks(self, depth: int, kind: str | None = None) -> Iterator[BlockSpec]:
        """The block of every layer in turn."""
        return (self.at(layer, depth, kind) for layer in range(1, depth + 1))

    def of_one_block(self) -> Placement:
        """The rule for a single block, whose stack sees to the ends and to what is carried between blocks."""
        return replace(self, embedding=False, final=False, streams="one")

    def equation(self, layer: int | None = None, depth: int | None = None) -> str:
        """The arithmetic of one block, or of the rule when no layer is given.

        Args:
            layer: Which block, counted from 1.
            depth: How many there are.
        """
        parts = []
        for kind, segments in self._rules():
            if layer is not None and depth is not None:
                segments = ((1.0, self.of_one_block().at(layer, depth, kind)),)
            also = "x0" if self.streams == "b2t" and kind == self._rules()[-1][0] else ""
            said = _equations(segments, self.streams, also)
            parts.append(said if kind is None else f"{kind}: {said}")
        return ", ".join(part for part in ("; ".join(parts), STREAMS[self.streams]) if part)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form that :meth:`from_dict` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Placement:
        """The placement that :meth:`to_dict` wrote.

        Raises:
            UsageError: If a key is unknown.
        """
        fields = known_fields(cls, data)
        fields["segments"] = _segments_from(data["segments"])
        fields["kinds"] = tuple((kind, _segments_from(segments)) for kind, segments in data.get("kinds", ()))
        return cls(**fields)


def _layers(end: float | First, depth: int) -> int:
    return end.layers if isinstance(end, First) else math.floor(end * depth)


def _check_ends(segments: Segments) -> None:
    for segment in segments:
        if not (isinstance(segment, tuple) and len(segment) == 2 and isinstance(segment[1], BlockSpec)):
            raise UsageError(f"segments must be pairs of an end and a BlockSpec, got {segment!r}.")
        if not isinstance(segment[0], First):
            expect_number("the end of a segment", segment[0], 0, above=True)
    counts = [end.layers for end, _ in segments if isinstance(end, First)]
    shares = [end for end, _ in segments if not isinstance(end, First)]
    rising = all(a < b for ends in (counts, shares) for a, b in zip([0, *ends], ends, strict=False))
    if not shares or shares[-1] != 1 or not rising or any(isinstance(end, First) for end, _ in segments[len(counts) :]):
        raise UsageError(f"segments must end at increasing shares of the depth, the last at 1, got {counts + shares}.")


def _equations(segments: Segments, streams: str, also: str) -> str:
    parts, start = [], "0"
    for end, block in segments:
        if streams in ("dual", "siamese"):  # what the branch gives to both streams
            said = "z = " + replace(block, stream=False).equation().removeprefix("x + ")
            said = said.replace("N(x)", "N(x + N(y))") if streams == "siamese" else said
        else:
            said = block.equation(also=also)
        stop = str(end.layers) if isinstance(end, First) else times(float(end), "L")
        parts.append(said + (f" for {start} < l <= {stop}" if len(segments) > 1 else ""))
        start = stop
    return "; ".join(parts)


def known_fields(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping whose keys are fields of a dataclass.

    Raises:
        UsageError: If one is not.
    """
    known = [field.name for field in dataclasses.fields(cls)]
    for key in data:
        if key not in known:
            raise unknown(f"key of {cls.__name__}:", key, known)
    return dict(data)


def _segments_from(data: Any) -> Segments:
    return tuple(
        (First(**known_fields(First, end)) if isinstance(end, Mapping) else float(end), _block_from(block))
        for end, block in data
    )


def _block_from(data: Mapping[str, Any]) -> BlockSpec:
    fields = known_fields(BlockSpec, data)
    for name, value in fields.items():
        if isinstance(value, Mapping):
            kind = LearnedScale if "per_channel" in value else Power
            fields[name] = kind(**known_fields(kind, value))
        elif isinstance(value, list | tuple):
            fields[name] = tuple(value)
    return BlockSpec(**fields)
