"""Number the layers of a model: which layer of its stream each residual block belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from normplace.analysis.recording.ids import BlockIndex
from normplace.analysis.results import ResidualBlock


class LayerNumbers:
    """The layer of every block.

    Args:
        blocks: The residual blocks of a model.
    """

    def __init__(self, blocks: Sequence[ResidualBlock]) -> None:
        self.blocks = blocks

    def of(self, block: BlockIndex) -> tuple[int, int]:
        """The layer of a block, counted from 1, and the number of layers of its stream."""
        stream = self.blocks[block].stream
        period = self._blocks_per_layer[stream]
        return self._positions[block] // period + 1, -(-self._lengths[stream] // period)

    @cached_property
    def _blocks_per_layer(self) -> dict[int, int]:
        """For each stream the number of blocks in a layer: the shortest repeating pattern of block kinds."""
        periods = {}
        for stream in {block.stream for block in self.blocks}:
            kinds = [block.kind for block in self.blocks if block.stream == stream]
            divisors = [length for length in range(1, len(kinds) // 2 + 1) if len(kinds) % length == 0]
            repeating = [length for length in divisors if kinds == kinds[:length] * (len(kinds) // length)]
            periods[stream] = repeating[0] if repeating else _unrepeated(kinds)
        return periods

    @cached_property
    def _lengths(self) -> Counter[int]:
        """The number of blocks of each stream."""
        return Counter(block.stream for block in self.blocks)

    @cached_property
    def _positions(self) -> list[int]:
        """The position of each block in its stream, counted from 0."""
        seen: Counter[int] = Counter()
        positions = []
        for block in self.blocks:
            positions.append(seen[block.stream])
            seen[block.stream] += 1
        return positions


def _unrepeated(kinds: Sequence[str]) -> int:
    """Two or three blocks of different kinds are one layer; otherwise every block is a layer."""
    return len(kinds) if 1 < len(kinds) <= 3 and len(set(kinds)) == len(kinds) else 1
