"""Segments of the depth: ranges of layers that share one block spec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normplace.errors import UsageError, expect_number, expect_whole
from normplace.placement.spec import BlockSpec


@dataclass(frozen=True)
class First:
    """The end of a segment as a number of layers, where a fraction would depend on the depth.

    Args:
        layers: How many layers the segment covers, counted from the first layer of the network.
    """

    layers: int

    def __post_init__(self) -> None:
        expect_whole(1, **{"the number of layers of First": self.layers})

    def __str__(self) -> str:
        return str(self.layers)


Segments = tuple[tuple[float | First, BlockSpec], ...]


def by_layer(specs: Sequence[BlockSpec]) -> Segments:
    """Segments of a network whose layers have these specs in order; equal neighbours share a segment."""
    starts = [layer for layer in range(1, len(specs)) if specs[layer] != specs[layer - 1]]
    ends: list[float | First] = [*map(First, starts), 1.0]
    return tuple((end, specs[start]) for end, start in zip(ends, [0, *starts], strict=True))


def last_layer(end: float | First, depth: int) -> int:
    """The last layer of a segment in a network of ``depth`` layers."""
    # The float product may be just below a whole number: 0.29 * 100 is.
    return end.layers if isinstance(end, First) else math.floor(end * depth + 1e-9)


def check_ends(segments: Segments) -> None:
    """Check that the segments cover the depth in increasing order.

    Raises:
        UsageError: If they do not.
    """
    for segment in segments:
        if not (isinstance(segment, tuple) and len(segment) == 2 and isinstance(segment[1], BlockSpec)):
            raise UsageError(f"segments must be pairs of an end and a BlockSpec, got {segment!r}.")
        if not isinstance(segment[0], First):
            expect_number("the end of a segment", segment[0], 0, above=True)
    counts = [end.layers for end, _ in segments if isinstance(end, First)]
    fractions = [end for end, _ in segments if not isinstance(end, First)]
    increasing = all(a < b for ends in (counts, fractions) for a, b in zip([0, *ends], ends, strict=False))
    counts_first = not any(isinstance(end, First) for end, _ in segments[len(counts) :])
    if not fractions or fractions[-1] != 1 or not increasing or not counts_first:
        raise UsageError(
            f"segments must end at increasing fractions of the depth, the last at 1, got {counts + fractions}."
        )
