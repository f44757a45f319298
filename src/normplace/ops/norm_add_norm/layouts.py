"""Layouts of the boundary's Triton kernels; see :mod:`normplace.ops.layouts` for where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from normplace.ops.layouts import gpu_limits


@dataclass(frozen=True)
class BoundaryTile:
    """Work of one program, for one class of row widths."""

    rows: int
    """Rows of a tile."""
    warps: int
    per_sm: int = 0
    """Programs for each multiprocessor, each of which processes several tiles; 0 for one program per tile."""
    stages: int = 1
    """Tiles whose loads are in flight (software pipelining)."""
    columns: int = 0
    """Columns of a tile; 0 for whole rows."""


# The key is the widest row of a class. Rows narrower than the narrowest class use its tile, with several rows in place
# of one. Tuned in bfloat16, for RMSNorm and for LayerNorm with biases.
FORWARD = {
    64: BoundaryTile(rows=32, warps=4),
    128: BoundaryTile(rows=4, warps=1),
    256: BoundaryTile(rows=2, warps=1),
    512: BoundaryTile(rows=2, warps=1),
    1024: BoundaryTile(rows=2, warps=2),
    1536: BoundaryTile(rows=1, warps=2),
    8192: BoundaryTile(rows=1, warps=4),
    12288: BoundaryTile(rows=1, warps=8),
    16384: BoundaryTile(rows=1, warps=16),
}
# With so few rows that all run at once, the time is that of one row, which more warps shorten. Only 1024 and 4096 were
# tuned; the other classes are interpolated.
FEW_ROWS = 1024
FORWARD_FEW_ROWS = {
    64: BoundaryTile(rows=32, warps=4),
    128: BoundaryTile(rows=4, warps=1),
    512: BoundaryTile(rows=2, warps=1),
    1024: BoundaryTile(rows=1, warps=4),
    2048: BoundaryTile(rows=1, warps=8),
    4096: BoundaryTile(rows=1, warps=16),
    16384: BoundaryTile(rows=1, warps=32),
}
# Wider rows are read twice, the second time from the cache, if no norm subtracts a mean (which would be a third read).
# They are read in one block where that needs no padding, otherwise in several.
MAX_REGISTER_WIDTH = 3072
FORWARD_ONE_BLOCK = {
    4096: BoundaryTile(rows=1, warps=8, columns=4096),
    16384: BoundaryTile(rows=1, warps=32, columns=16384),
}
FORWARD_BLOCKS = {
    7168: BoundaryTile(rows=1, warps=4, columns=2048),
    8192: BoundaryTile(rows=1, warps=8, columns=2048),
    16384: BoundaryTile(rows=1, warps=16, columns=4096),
}
BACKWARD = {
    64: BoundaryTile(rows=32, warps=4, per_sm=2, stages=3),
    128: BoundaryTile(rows=8, warps=2, per_sm=4, stages=3),
    256: BoundaryTile(rows=4, warps=2, per_sm=4, stages=3),
    512: BoundaryTile(rows=4, warps=4, per_sm=2, stages=3),
    768: BoundaryTile(rows=1, warps=2, per_sm=4, stages=3),
    1024: BoundaryTile(rows=2, warps=4, per_sm=2, stages=3),
    1280: BoundaryTile(rows=1, warps=4, per_sm=3, stages=4),
    1536: BoundaryTile(rows=1, warps=4, per_sm=2, stages=4),
    2048: BoundaryTile(rows=1, warps=8, per_sm=2, stages=3),
    3072: BoundaryTile(rows=1, warps=4, per_sm=2, stages=3),
    3584: BoundaryTile(rows=1, warps=8, per_sm=1, stages=5),
    4096: BoundaryTile(rows=1, warps=8, per_sm=1, stages=3),
    6144: BoundaryTile(rows=1, warps=8, per_sm=1, stages=3),
    8192: BoundaryTile(rows=1, warps=32, per_sm=1, stages=3),
}
# With gradients of biases a program keeps twice as many sums. Rows that are a multiple of 256 elements per warp need no
# masks, which saves registers: hence the classes of a single width.
BACKWARD_BIAS = {
    64: BoundaryTile(rows=32, warps=4, per_sm=2, stages=3),
    128: BoundaryTile(rows=8, warps=2, per_sm=4, stages=3),
    256: BoundaryTile(rows=4, warps=2, per_sm=4, stages=3),
    512: BoundaryTile(rows=2, warps=2, per_sm=4, stages=3),
    1024: BoundaryTile(rows=1, warps=2, per_sm=4, stages=3),
    2048: BoundaryTile(rows=1, warps=4, per_sm=2, stages=4),
    3071: BoundaryTile(rows=1, warps=8, per_sm=1, stages=4),
    3072: BoundaryTile(rows=1, warps=4, per_sm=2, stages=3),
    4095: BoundaryTile(rows=1, warps=8, per_sm=1, stages=4),
    4096: BoundaryTile(rows=1, warps=4, per_sm=2, stages=3),
    8192: BoundaryTile(rows=1, warps=8, per_sm=1, stages=3),
}
# The sums of wider rows would fill the registers; a second kernel computes them.
MAX_SUMMED_WIDTH = 8192
BACKWARD_WIDE = {12288: BoundaryTile(rows=1, warps=16), 16384: BoundaryTile(rows=1, warps=32)}
COLUMN_SUMS = BoundaryTile(rows=1, warps=4, per_sm=4, stages=3, columns=1024)
# Programs' partial sums that are added at a time, and channels of each program that adds them.
SUM_CHUNK, SUM_SPAN = 256, 16
# Bytes of shared memory reserved for sums across warps.
RESERVED_BYTES = 32 * 1024


class BoundaryLayout(NamedTuple):
    """How the rows of one launch are distributed."""

    tile_rows: int
    max_programs: int
    """0 for one program per tile."""
    in_blocks: bool
    """Whether a row is processed in several blocks."""
    constants: dict[str, int]
    warps: int

    def programs(self, rows: int) -> int:
        """Number of programs for this many rows."""
        tiles = -(-rows // self.tile_rows)
        return min(tiles, self.max_programs) if self.max_programs else tiles


def forward_table(width: int, few_rows: bool, subtracts_mean: bool) -> dict[int, BoundaryTile]:
    """The tiles of a forward pass.

    Args:
        width: Features of a row.
        few_rows: Whether all rows run at once.
        subtracts_mean: Whether one of the norms is a LayerNorm.
    """
    if few_rows:
        return FORWARD_FEW_ROWS
    if subtracts_mean or width <= MAX_REGISTER_WIDTH:
        return FORWARD
    return FORWARD_ONE_BLOCK if width in FORWARD_ONE_BLOCK else FORWARD_BLOCKS


def backward_table(width: int, has_bias_grads: bool) -> dict[int, BoundaryTile]:
    """The tiles of a backward pass."""
    if width > MAX_SUMMED_WIDTH:
        return BACKWARD_WIDE
    return BACKWARD_BIAS if has_bias_grads else BACKWARD


def tile_for(table: dict[int, BoundaryTile], width: int) -> BoundaryTile:
    """The tile of the narrowest class that contains this width."""
    return table[min(widest for widest in table if widest >= width)]


def layout_for(
    table: dict[int, BoundaryTile], width: int, device: torch.device, row_bytes: int, channel_bytes: int
) -> BoundaryLayout:
    """The layout of a kernel, within the limits of the device.

    Args:
        table: Tiles by width.
        width: Features of a row.
        device: Where the kernel runs.
        row_bytes: Bytes that it reads of each element of a row.
        channel_bytes: Bytes that it reads of each channel.
    """
    tile, limits = tile_for(table, width), gpu_limits(device)
    block = tile.columns or 1 << (width - 1).bit_length()
    rows = tile.rows if tile.columns else tile.rows * max(1, min(table) // block)
    pipelined_bytes = (tile.stages - 1) * block * (rows * row_bytes + channel_bytes)
    stages = tile.stages if pipelined_bytes <= limits.shared_bytes - RESERVED_BYTES else 1
    constants = {"ROWS": rows, "BLOCK": block, "STAGES": stages}
    max_programs = tile.per_sm * limits.multiprocessors
    return BoundaryLayout(rows, max_programs, tile.columns > 0, constants, limits.warps(tile.warps))
