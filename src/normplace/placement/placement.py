"""A placement as a value: which norms and scales every block of a residual network has.

::

    x ──┬─────────────────────────(skip scale)──┐
        └─ [input] ─ F … [inner] … ─ [output] ─ (branch scale) ─(+)─ [stream] ── x'
    embedding ─ [embedding] ─ x0 ………………………… xL ─ [final] ─ head

:class:`BlockSpec` describes one block of the drawing. :class:`Placement` has the spec of every layer and kind of
branch. Both are frozen and compare by value. Contradictory fields raise a :class:`~normplace.UsageError`.
:mod:`normplace.placement.presets` names the published placements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from normplace.errors import UsageError, expect_choice, expect_whole
from normplace.placement.equations import Apply, Sum, Symbol, X, branch_term, number_text, with_gain
from normplace.placement.saved import known_fields, read_segments
from normplace.placement.segments import First, Segments, check_ends, last_layer
from normplace.placement.spec import BlockSpec, short_repr

NETWORK_SLOTS = ("embedding", "final")
STREAMS = {
    "one": "",
    "b2t": "x0 the layer's input",
    "dual": "x' = N(x + z), r' = r + z, out = x + N(r)",
    "siamese": "x' = N(x + (2l)^(-1/2) z), y' = y + z, out = x + N(y)",
    "parallel": "",
    "parallel-shared": "",
}
"""The streams a stack can carry from block to block, and the equation of each; ``z`` is the output of a branch."""


@dataclass(frozen=True)
class Placement:
    """The block spec of every layer, and whether the embedding and the final stream are normalized.

    Args:
        segments: (end, spec) pairs; an end is a fraction of the depth or the :class:`First` few layers. Most placements
            have one segment that ends at 1. Empty if ``kinds`` has segments for each kind of branch.
        embedding: Whether there is a norm on the embedding.
        final: Whether there is a norm before the head.
        name: Name of the placement.
        kinds: The segments of each kind of branch, in the order of the branches in a layer.
        streams: What the stack carries from block to block: ``one`` stream; ``b2t``, which adds the input of a layer
            again before its last norm; the two streams of ``dual`` or ``siamese``; or one stream that all branches of
            a layer read at the same point, ``parallel``, through the input norm of the first, ``parallel-shared``.

    Raises:
        UsageError: If the arguments contradict each other.

    Examples:
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

    def __repr__(self) -> str:
        return short_repr(self)

    def __post_init__(self) -> None:
        if bool(self.segments) == bool(self.kinds):
            raise UsageError("give segments for all branches, or kinds with segments for each kind, not both or none.")
        for _, segments in self._by_kind():
            check_ends(segments)
        self._check_streams()
        last = self._by_kind()[-1][1][-1][1]
        if self.final and last.stream and self.streams in ("one", "b2t"):
            raise UsageError(
                "the last block already normalizes the stream, so a final norm would normalize twice: "
                "set final=False, or leave the stream slot empty."
            )

    def _check_streams(self) -> None:
        expect_choice("kind of streams", self.streams, STREAMS)
        if self.streams == "b2t" and not all(spec.stream for _, spec in self._by_kind()[-1][1]):
            raise UsageError("b2t adds the layer's input before its last norm: set stream=True in the last block.")
        if self.streams in ("dual", "siamese"):
            if not self.final or not all(spec.stream for spec in self.all_specs):
                raise UsageError(
                    f"{self.streams} normalizes one stream after every add and the other at the end: set stream=True "
                    "in every block, and final=True."
                )
            if not all(spec.keeps_skip for spec in self.all_specs):
                raise UsageError(f"{self.streams} adds the branch to two unchanged streams: leave the skip alone.")
        if self.streams in ("parallel", "parallel-shared"):
            self._check_parallel()
        if self.streams == "siamese" and not all(spec.input for spec in self.all_specs):
            raise UsageError(
                "siamese normalizes the sum of both streams before each branch: set input=True in every block."
            )

    def _check_parallel(self) -> None:
        if any(len(segments) > 1 for _, segments in self.kinds) or not self.kinds:
            raise UsageError(f"{self.streams} adds one branch of each kind: give kinds with one spec each.")
        if any(spec.stream or not spec.keeps_skip for spec in self.all_specs):
            raise UsageError(
                f"{self.streams} adds all branches of a layer to one stream: leave the skip and the stream slot alone."
            )
        reads = [spec.input for spec in self.all_specs]
        if self.streams == "parallel-shared" and (not reads[0] or any(reads[1:])):
            raise UsageError(
                "parallel-shared has one input norm for all branches of a layer: set input=True in the first kind only."
            )

    @property
    def all_specs(self) -> tuple[BlockSpec, ...]:
        """The spec of every segment, with unresolved powers of the layer and the depth."""
        return tuple(spec for _, segments in self._by_kind() for _, spec in segments)

    def _by_kind(self) -> tuple[tuple[str | None, Segments], ...]:
        return self.kinds or ((None, self.segments),)

    @classmethod
    def uniform(
        cls, spec: BlockSpec, *, embedding: bool = False, final: bool = False, name: str | None = None
    ) -> Placement:
        """The same spec for every block."""
        return cls(((1.0, spec),), embedding, final, name)

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
        """One spec, or segments, for each kind of branch.

        Args:
            kinds: Specs by kind, in the order of the branches in a layer.
            embedding: Whether there is a norm on the embedding.
            final: Whether there is a norm before the head.
            name: Name of the placement.
            streams: What the stack carries from block to block.
        """
        pairs = tuple(
            (kind, ((1.0, specs),) if isinstance(specs, BlockSpec) else specs) for kind, specs in kinds.items()
        )
        return cls((), embedding, final, name, pairs, streams)

    @classmethod
    def named(cls, name: str, **options: Any) -> Placement:
        """The published placement of that name; see :mod:`normplace.placement.presets`.

        Args:
            name: A preset or one of its aliases.
            **options: Options of the preset, such as ``fraction`` of ``mix``.

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

    def map_specs(self, change: Callable[[BlockSpec], BlockSpec], kind: str | None = None) -> Placement:
        """The placement with every spec changed, or every spec of one kind of branch.

        Args:
            change: Returns the new spec of a block.
            kind: ``attention`` or ``mlp``, the kinds of a Transformer; None for all.
        """

        def mapped(segments: Segments) -> Segments:
            return tuple((end, change(spec)) for end, spec in segments)

        if kind is None:
            kinds = tuple((name, mapped(segments)) for name, segments in self.kinds)
            return replace(self, segments=mapped(self.segments), kinds=kinds)
        by_kind = dict(self.kinds) or dict.fromkeys(("attention", "mlp"), self.segments)
        expect_choice("kind of branch", kind, by_kind)
        return replace(self, segments=(), kinds=tuple({**by_kind, kind: mapped(by_kind[kind])}.items()))

    def at(self, layer: int, depth: int, kind: str | None = None) -> BlockSpec:
        """The spec of ``layer`` (counted from 1) in a network of ``depth`` layers.

        Args:
            layer: Number of the layer; in a Transformer, a layer has an attention branch and an MLP branch.
            depth: How many layers there are.
            kind: Kind of branch; required if the placement depends on it.

        Raises:
            UsageError: If the layer is outside the network, the kind is unknown, or the placement has several streams.
        """
        if self.streams != "one":
            raise UsageError(
                f"{self.name or 'this placement'} spans several blocks: build a stack that carries its streams, such "
                "as normplace.models.Transformer."
            )
        expect_whole(1, layer=layer, depth=depth)
        if layer > depth:
            raise UsageError(f"layer must lie between 1 and the depth {depth}, got {layer}.")
        by_kind = dict(self.kinds)
        if by_kind and kind not in by_kind:
            raise UsageError(
                f"{self.name or 'this placement'} differs between {' and '.join(by_kind)} branches: set the attribute "
                "kind of the branch, or choose a placement that is the same for all branches."
            )
        segments = by_kind[kind] if kind is not None and by_kind else self.segments
        spec = next(spec for end, spec in segments if layer <= last_layer(end, depth))
        return spec.at(layer, depth)

    def specs(self, depth: int, kind: str | None = None) -> Iterator[BlockSpec]:
        """The spec of every layer in order."""
        return (self.at(layer, depth, kind) for layer in range(1, depth + 1))

    def for_single_block(self) -> Placement:
        """The placement of a block whose stack handles the network's ends and streams."""
        return replace(self, embedding=False, final=False, streams="one")

    def equation(self, layer: int | None = None, depth: int | None = None) -> str:
        """The equation of one block, or of all blocks when no layer is given.

        Args:
            layer: Number of the layer, counted from 1.
            depth: How many layers there are.
        """
        if self.streams in ("parallel", "parallel-shared"):
            return self._parallel_equation()
        parts = []
        for kind, segments in self._by_kind():
            if layer is not None and depth is not None:
                segments = ((1.0, self.for_single_block().at(layer, depth, kind)),)
            extra = "x0" if self.streams == "b2t" and kind == self._by_kind()[-1][0] else None
            equation = _segments_equation(segments, self.streams, extra)
            parts.append(equation if kind is None else f"{kind}: {equation}")
        return ", ".join(part for part in ("; ".join(parts), STREAMS[self.streams]) if part)

    def _parallel_equation(self) -> str:
        shared = self.streams == "parallel-shared"
        terms = []
        for number, (_, ((_, spec),)) in enumerate(self.kinds, 1):
            spec = replace(spec, input=True) if shared else spec
            terms.append(branch_term(spec, branch=f"F{number}", input_norm="N" if shared else f"N{number}"))
        return str(Sum((X, *terms)))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; :meth:`from_dict` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Placement:
        """The placement that :meth:`to_dict` wrote.

        Raises:
            UsageError: If a key is unknown.
        """
        fields = known_fields(cls, data)
        fields["segments"] = read_segments(data["segments"])
        fields["kinds"] = tuple((kind, read_segments(segments)) for kind, segments in data.get("kinds", ()))
        return cls(**fields)


def _segments_equation(segments: Segments, streams: str, extra_residual: str | None) -> str:
    parts, start = [], "0"
    for end, spec in segments:
        if streams in ("dual", "siamese"):
            read = X if streams == "dual" else Sum((X, Apply("N", Symbol("y"))))
            equation = with_gain(spec, f"z = {branch_term(spec, stream=read)}")
        else:
            equation = spec.equation(extra_residual=extra_residual)
        stop = str(end) if isinstance(end, First) else "L" if end == 1 else f"{number_text(end)} L"
        parts.append(equation + (f" for {start} < l <= {stop}" if len(segments) > 1 else ""))
        start = stop
    return "; ".join(parts)
