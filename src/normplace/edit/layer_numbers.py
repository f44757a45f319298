"""Which layer of its stream each residual block belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from normplace.analysis.results import ResidualBlock


class LayerNumbers:
    """The layers of a model.

    Args:
        blocks: Its residual blocks.
    """

    def __init__(self, blocks: Sequence[ResidualBlock]) -> None:
        self.blocks = blocks

    @cached_property
    def periods(self) -> dict[int, int]:
        """For each stream, how many blocks make up one layer: the shortest pattern of kinds that repeats."""
        found = {}
        for stream in {block.stream for block in self.blocks}:
            kinds = [block.kind for block in self.blocks if block.stream == stream]
            lengths = [at for at in range(1, len(kinds) // 2 + 1) if len(kinds) % at == 0]
            repeated = [at for at in lengths if kinds == kinds[:at] * (len(kinds) // at)]
            found[stream] = repeated[0] if repeated else _one_layer(kinds)
        return found

    def of(self, block: int) -> tuple[int, int]:
        """Which layer of its stream a block belongs to, counted from 1, and how many there are."""
        stream, period = self.blocks[block].stream, self.periods[self.blocks[block].stream]
        return self._steps[block] // period + 1, -(-self._lengths[stream] // period)

    @cached_property
    def _lengths(self) -> Counter[int]:
        """How many blocks each stream has."""
        return Counter(block.stream for block in self.blocks)

    @cached_property
    def _steps(self) -> list[int]:
        """Which block of its stream each block is, counted from 0."""
        seen: Counter[int] = Counter()
        found = []
        for block in self.blocks:
            found.append(seen[block.stream])
            seen[block.stream] += 1
        return found


def _one_layer(kinds: Sequence[str]) -> int:
    """A stream of different kinds of blocks that does not repeat is one layer if it is short, else each is one."""
    return len(kinds) if 1 < len(kinds) <= 3 and len(set(kinds)) == len(kinds) else 1
