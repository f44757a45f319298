"""Number the layers of a model: which layer of its stream each residual block belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import ne

from normplace.analysis.recording.ids import BlockIndex
from normplace.analysis.results import ResidualBlock

FEATURE_KINDS = ("mlp", "experts")
"""Branches that treat each row alone. The others mix rows."""


class LayerNumbers:
    """The layer of every block."""

    def __init__(self, blocks: Mapping[BlockIndex, ResidualBlock]) -> None:
        self._layers: dict[BlockIndex, int] = {}
        self.depths: dict[int, int] = {}
        """The number of layers of each stream."""
        self._streams = {index: block.stream for index, block in blocks.items()}
        for stream in dict.fromkeys(self._streams.values()):
            indices = [index for index in blocks if self._streams[index] == stream]
            layers = _layers([blocks[index] for index in indices])
            self._layers.update(zip(indices, layers, strict=True))
            self.depths[stream] = layers[-1]

    def of(self, block: BlockIndex) -> tuple[int, int]:
        """The layer of a block, counted from 1, and the number of layers of its stream."""
        return self._layers[block], self.depths[self._streams[block]]


def _layers(blocks: Sequence[ResidualBlock]) -> list[int]:
    """The layers of the blocks of one stream, counted from 1.

    A layer is the shortest repeating pattern: of branches that mix rows and branches that do not, or if there is only
    one of these, of the kinds of branches. Without a pattern, two or three blocks of different kinds are one layer, and
    otherwise the blocks that one module adds.
    """
    count, kinds = len(blocks), [block.kind for block in blocks]
    roles = [tuple(branch.kind not in FEATURE_KINDS for branch in block.branches) for block in blocks]
    has_both = len({role for branches in roles for role in branches}) == 2
    period = _period(roles if has_both else kinds)
    if period is None and len(set(kinds)) == count <= 3:
        period = count
    modules = [block.module for block in blocks]
    if period is None and len(set(modules)) == 1:
        period = 1
    if period is not None:
        return [index // period + 1 for index in range(count)]
    return [1 + number for number in accumulate(map(ne, modules[1:], modules), initial=0)]


def _period(items: Sequence[object]) -> int | None:
    """The length of the shortest pattern that is repeated; None if nothing is."""
    count = len(items)
    sizes = (size for size in range(1, count // 2 + 1) if count % size == 0)
    return next((size for size in sizes if items[size:] == items[:-size]), None)
