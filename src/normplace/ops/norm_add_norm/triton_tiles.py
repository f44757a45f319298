"""How the boundary's kernels are laid out on a GPU, by the width of rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton


@dataclass(frozen=True)
class Tile:
    """How a kernel is laid out for one class of widths."""

    rows: int
    """Rows of a tile."""
    warps: int
    per_sm: int = 0
    """Programs for each multiprocessor, which walk over the tiles; 0 for as many programs as tiles."""
    stages: int = 1
    """Tiles in flight in one program."""
    columns: int = 0
    """Columns of a tile; 0 for whole rows."""


# By the widest rows of a class; rows narrower than the narrowest share its tile, several to a row of it. The fastest of
# those tried on an H200 in bfloat16, for RMSNorm and for LayerNorm with shifts.
FORWARD = {
    64: Tile(rows=32, warps=4),
    128: Tile(rows=4, warps=1),
    256: Tile(rows=2, warps=1),
    512: Tile(rows=2, warps=1),
    1024: Tile(rows=2, warps=2),
    1536: Tile(rows=1, warps=2),
    8192: Tile(rows=1, warps=4),
    12288: Tile(rows=1, warps=8),
    16384: Tile(rows=1, warps=16),
}
# So few rows that all are under way at once take as long as one of them, which more warps make shorter: 1024 and 4096
# were tried, the others follow them.
FEW = 1024
FORWARD_OF_FEW = {
    64: Tile(rows=32, warps=4),
    128: Tile(rows=4, warps=1),
    512: Tile(rows=2, warps=1),
    1024: Tile(rows=1, warps=4),
    2048: Tile(rows=1, warps=8),
    4096: Tile(rows=1, warps=16),
    16384: Tile(rows=1, warps=32),
}
# Rows wider than HELD are read again from a cache, which is faster where no mean is taken out, which would read them
# once more; in one piece where that needs no padding.
HELD = 3072
FORWARD_IN_ONE = {
    4096: Tile(rows=1, warps=8, columns=4096),
    16384: Tile(rows=1, warps=32, columns=16384),
}
FORWARD_IN_PIECES = {
    7168: Tile(rows=1, warps=4, columns=2048),
    8192: Tile(rows=1, warps=8, columns=2048),
    16384: Tile(rows=1, warps=16, columns=4096),
}
BACKWARD = {
    64: Tile(rows=32, warps=4, per_sm=2, stages=3),
    128: Tile(rows=8, warps=2, per_sm=4, stages=3),
    256: Tile(rows=4, warps=2, per_sm=4, stages=3),
    512: Tile(rows=4, warps=4, per_sm=2, stages=3),
    768: Tile(rows=1, warps=2, per_sm=4, stages=3),
    1024: Tile(rows=2, warps=4, per_sm=2, stages=3),
    1280: Tile(rows=1, warps=4, per_sm=3, stages=4),
    1536: Tile(rows=1, warps=4, per_sm=2, stages=4),
    2048: Tile(rows=1, warps=8, per_sm=2, stages=3),
    3072: Tile(rows=1, warps=4, per_sm=2, stages=3),
    3584: Tile(rows=1, warps=8, per_sm=1, stages=5),
    4096: Tile(rows=1, warps=8, per_sm=1, stages=3),
    6144: Tile(rows=1, warps=8, per_sm=1, stages=3),
    8192: Tile(rows=1, warps=32, per_sm=1, stages=3),
}
# With gradients of shifts a program keeps twice as many sums. Rows of a whole number of parts of a tile, 256 elements
# for each warp, need no masks, which leaves them registers: hence classes of one width.
BACKWARD_SHIFTS = {
    64: Tile(rows=32, warps=4, per_sm=2, stages=3),
    128: Tile(rows=8, warps=2, per_sm=4, stages=3),
    256: Tile(rows=4, warps=2, per_sm=4, stages=3),
    512: Tile(rows=2, warps=2, per_sm=4, stages=3),
    1024: Tile(rows=1, warps=2, per_sm=4, stages=3),
    2048: Tile(rows=1, warps=4, per_sm=2, stages=4),
    3071: Tile(rows=1, warps=8, per_sm=1, stages=4),
    3072: Tile(rows=1, warps=4, per_sm=2, stages=3),
    4095: Tile(rows=1, warps=8, per_sm=1, stages=4),
    4096: Tile(rows=1, warps=4, per_sm=2, stages=3),
    8192: Tile(rows=1, warps=8, per_sm=1, stages=3),
}
# The sums of rows wider than SUMMED would fill the registers.
SUMMED = 8192
BACKWARD_ROWS = {12288: Tile(rows=1, warps=16), 16384: Tile(rows=1, warps=32)}
COLUMNS = Tile(rows=1, warps=4, per_sm=4, stages=3, columns=1024)
# Bytes of shared memory left for sums across warps.
SCRATCH = 32 * 1024


@functools.cache
def _machine(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory that one program may fill with rows in flight."""
    if device.type != "cuda":
        return 2, 0
    driver: Any = triton.runtime.driver
    properties = driver.active.utils.get_device_properties(device.index)
    return properties["multiprocessor_count"], properties["max_shared_mem"] - SCRATCH


class Layout(NamedTuple):
    """How the rows of one launch are shared out."""

    tall: int
    """Rows of a tile."""
    most: int
    """Programs there may be; 0 for as many as tiles."""
    cut: bool
    """Whether rows are cut into pieces."""
    constants: dict[str, int]
    warps: int

    def programs(self, rows: int) -> int:
        """How many programs share so many rows."""
        tiles = -(-rows // self.tall)
        return min(tiles, self.most) if self.most else tiles


def forward(width: int, few: bool, centred: bool) -> dict[int, Tile]:
    """The table for a forward pass.

    Args:
        width: Of the rows.
        few: Whether all rows are under way at once.
        centred: Whether a norm takes a mean out.
    """
    if few:
        return FORWARD_OF_FEW
    if centred or width <= HELD:
        return FORWARD
    return FORWARD_IN_ONE if width in FORWARD_IN_ONE else FORWARD_IN_PIECES


def backward(width: int, shifts: bool) -> dict[int, Tile]:
    """The table for a backward pass, with gradients of shifts or not."""
    if width > SUMMED:
        return BACKWARD_ROWS
    return BACKWARD_SHIFTS if shifts else BACKWARD


def tile_of(table: dict[int, Tile], width: int) -> Tile:
    """The tile of the narrowest class that rows of this width belong to."""
    return table[min(widest for widest in table if widest >= width)]


def layout_of(table: dict[int, Tile], width: int, device: torch.device, row_bytes: int, channel_bytes: int) -> Layout:
    """Of a kernel that reads so many bytes of each element of a row, and of each channel."""
    tile = tile_of(table, width)
    block = tile.columns or 1 << (width - 1).bit_length()
    tall = tile.rows if tile.columns else tile.rows * max(1, min(table) // block)
    multiprocessors, shared = _machine(device)
    fits = (tile.stages - 1) * block * (tall * row_bytes + channel_bytes) <= shared
    constants = {"ROWS": tall, "BLOCK": block, "STAGES": tile.stages if fits else 1}
    return Layout(tall, tile.per_sm * multiprocessors, tile.columns > 0, constants, tile.warps)
