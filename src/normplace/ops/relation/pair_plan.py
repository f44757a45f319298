"""How the kernels of pairs are laid out for a shape, and shared out among the programs of a GPU."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from normplace.ops.launch import Launch
from normplace.ops.relation import pair_kernels, scale_kernels
from normplace.ops.relation.planned import Form, Step

# Launched with options and numbers that their Python signatures do not show.
kernels: Any = pair_kernels
of_scales: Any = scale_kernels


@dataclass(frozen=True)
class Tile:
    """How a kernel is laid out."""

    rows: int
    cols: int
    warps: int
    unroll: int = 1
    """Keys or queries whose loads are issued together; of a matrix product, the summed axis of a step."""


SCALES = Tile(rows=64, cols=32, warps=4)
# Channels that one step of a product of rows in half precision sums.
QUICK_STEP = 64
FORWARD = Tile(rows=16, cols=64, warps=4, unroll=8)
QUERIES = Tile(rows=16, cols=64, warps=4, unroll=8)
# Of half precision, where these channels divide a head's: the sum over them takes fewer steps.
WIDE_QUERIES = Tile(rows=16, cols=128, warps=8, unroll=8)
KEYS = Tile(rows=16, cols=64, warps=4, unroll=4)
# Of half precision, and of float32, whose products take three times as many registers.
THROUGH_SCALE = Tile(rows=128, cols=64, warps=8, unroll=32)
THROUGH_EXACT_SCALE = Tile(rows=16, cols=128, warps=4, unroll=32)
# Elements of the rows whose mean is taken by one program.
STATISTICS = 4096
# Numbers kept for pairs at a time, 1 GiB; at least those of one sequence.
SCRATCH = 1 << 28
# Sequences and heads at a time: a grid has at most 65,535 programs along its last axis, two of them for each.
MOST = 32_767
# Warps that run at once, sixteen on each multiprocessor of an H200. Where there are no more, the longest is waited for:
# each then takes a short tile as well, and what is summed over is cut into parts, to make enough.
AT_ONCE = 2048
ENOUGH = 8192
# A part is at least so long, and all parts together have no more numbers than that, 16 MiB.
SHORTEST = 64
PARTED = 1 << 22
# Elements of what is added up from parts, in one program.
BLOCK = 1024


class Share(NamedTuple):
    """How a kernel on every channel of a pair is shared out among programs."""

    kernel: Any
    tile: Tile
    columns: int
    """Programs that share out the channels."""
    paired: bool
    """Whether programs take two tiles."""
    parts: int
    """Into how many the keys or queries that are summed over are cut."""


@dataclass(frozen=True)
class Plan:
    """The sizes of a relation, and how each of its kernels is launched."""

    form: Form

    @property
    def length(self) -> int:
        """T."""
        return self.form.shape[1]

    @property
    def channels(self) -> int:
        """D."""
        return self.form.shape[2]

    @property
    def heads(self) -> int:
        """Groups of channels."""
        return self.form.rule.heads

    @property
    def width(self) -> int:
        """Channels of a head."""
        return self.channels // self.heads

    @property
    def every(self) -> int:
        """Heads of all sequences."""
        return self.form.shape[0] * self.heads

    @property
    def elements(self) -> int:
        """Of a, and of what is computed."""
        return math.prod(self.form.shape)

    @property
    def norm(self) -> bool:
        """Whether pairs are normalized."""
        return self.form.rule.norm == "joint"

    @property
    def half(self) -> bool:
        """Whether products of two numbers are exact in float32."""
        return self.form.dtype != torch.float32

    @property
    def stride(self) -> int:
        """Between the rows of the room for pairs: one longer, so that those on the diagonal are kept twice."""
        return self.length + 1

    @property
    def slices(self) -> list[tuple[int, int]]:
        """First and number of the sequences and heads taken at a time."""
        fits = max(1, SCRATCH // (self.length * self.stride)) if self.norm else self.every
        step = min(self.every, MOST, fits)
        return [(first, min(step, self.every - first)) for first in range(0, self.every, step)]

    @property
    def room(self) -> int:
        """Numbers kept for pairs at a time."""
        return self.slices[0][1] * self.length * self.stride if self.norm else 1

    @property
    def rows_scratch(self) -> tuple[int, ...]:
        """Numbers in the mean and square of the rows of a, those of b, and the weights."""
        # One at least, since kernels count from where it would begin.
        statistics = self.every * self.length if self.norm else 1
        return *[statistics] * 4, 0 if self.form.masked else self.form.shape[0] * self.length

    @property
    def left(self) -> int:
        """Tiles of pairs whose scales may be left to a second kernel."""
        return self.slices[0][1] * triton.cdiv(self.length, SCALES.rows) ** 2 if self.norm and self.half else 1

    def statistics(self) -> Step | None:
        """Of every row."""
        rule, padded = self.form.rule, triton.next_power_of_2(self.width)
        if self.form.masked and not self.norm:
            return None
        rows = max(1, STATISTICS // padded)
        constants = {
            "NORM": self.norm, "MASKED": self.form.masked, "MEAN": rule.mean, "CAUSAL": rule.causal, "ROWS": rows,
            "WIDTH": padded,
        }  # fmt: skip
        grid = (self.every * triton.cdiv(self.length, rows), 2 if self.norm else 1, 1)
        numbers = (self.length, self.channels, self.heads, self.width)
        return Step(Launch(of_scales.row_statistics, constants), grid, numbers)

    def scales(self, count: int) -> tuple[Step, ...]:
        """The scales of all pairs."""
        if not self.norm:
            return ()
        rule, tiles = self.form.rule, triton.cdiv(self.length, SCALES.rows)
        gain = math.log2(math.e) if rule.activation == "exp" else 1.0
        constants = {"CAUSAL": rule.causal, "GAIN": gain, "ROWS": SCALES.rows}
        # The interpreter would multiply bfloat16 by its bits.
        widen = os.environ.get("TRITON_INTERPRET") == "1"
        quick = constants | {"COLS": QUICK_STEP, "WIDEN": widen}
        exact = constants | {"COLS": SCALES.cols, "FLAT": rule.activation == "relu", "LEFT": self.half}
        launches = [Launch(of_scales.quick_scales, quick, num_warps=SCALES.warps)] if self.half else []
        launches.append(Launch(of_scales.pair_scales, exact, num_warps=SCALES.warps))
        numbers = (self.length, self.channels, self.heads, self.width, rule.eps, self.stride)
        return tuple(Step(launch, (tiles, tiles, count), numbers) for launch in launches)

    def share(self, kernel: Any, tile: Tile, columns: int) -> Share:
        """Among enough programs, if there are that many, with so many of them for the channels."""
        warps = self.slices[0][1] * triton.cdiv(self.length, tile.rows) * columns * tile.warps
        few, causal = warps <= AT_ONCE, self.form.rule.causal
        wanted = ENOUGH * (2 if causal else 1) // warps if few and self.norm else 1
        parts = max(1, min(wanted, self.length // SHORTEST, PARTED // self.elements))
        return Share(kernel, tile, columns, few and causal, parts)

    @property
    def relate(self) -> Share:
        """Of the forward pass."""
        return self.share(kernels.relate, FORWARD, triton.cdiv(self.width, FORWARD.cols))

    @property
    def query_gradients(self) -> Share:
        """Of the first half of the backward pass, where a program needs all channels."""
        tile = WIDE_QUERIES if self.half and self.width % WIDE_QUERIES.cols == 0 else QUERIES
        return self.share(kernels.query_gradients, tile, 1)

    @property
    def key_gradients(self) -> Share:
        """Of the other half."""
        return self.share(kernels.key_gradients, KEYS, triton.cdiv(self.width, KEYS.cols))

    def on_pairs(self, share: Share, count: int) -> Step:
        """A kernel on every channel of a pair."""
        rule, tile, tiles = self.form.rule, share.tile, triton.cdiv(self.length, share.tile.rows)
        constants = {
            "D": self.channels, "ACT": rule.activation, "NORM": self.norm, "MASKED": self.form.masked,
            "CAUSAL": rule.causal, "EVEN": self.width % tile.cols == 0, "ROWS": tile.rows, "COLS": tile.cols,
            "UNROLL": tile.unroll, "PAIRED": share.paired, "PARTS": share.parts,
        }  # fmt: skip
        grid = (count * (triton.cdiv(tiles, 2) if share.paired else tiles), share.columns, share.parts)
        numbers = (count, self.length, self.heads, self.width, self.stride, self.elements)
        return Step(Launch(share.kernel, constants, num_warps=tile.warps), grid, numbers)

    def add_parts(self) -> Step | None:
        """The sum of what the forward pass leaves in parts."""
        if self.relate.parts == 1:
            return None
        launch = Launch(kernels.add_parts, {"PARTS": self.relate.parts, "BLOCK": BLOCK})
        return Step(launch, (triton.cdiv(self.elements, BLOCK), 1, 1), (self.elements, self.channels))

    def through_scale(self, count: int) -> Step | None:
        """The part of both gradients through the scales."""
        if not self.norm:
            return None
        tile = THROUGH_SCALE if self.half else THROUGH_EXACT_SCALE
        constants = {
            "MASKED": self.form.masked, "CAUSAL": self.form.rule.causal, "PRECISION": "tf32" if self.half else "tf32x3",
            "ROWS": tile.rows, "COLS": tile.cols, "STEP": tile.unroll,
        }  # fmt: skip
        grid = (triton.cdiv(self.length, tile.rows), triton.cdiv(self.width, tile.cols), 2 * count)
        numbers = (self.length, self.channels, self.heads, self.width, self.stride)
        return Step(Launch(of_scales.add_through_scale, constants, num_warps=tile.warps), grid, numbers)

    def remove_means(self) -> Step | None:
        """The gradients through the means that pairs are taken less of."""
        if not self.norm:
            return None
        padded = triton.next_power_of_2(self.width)
        rows, step = self.every * self.length, max(1, STATISTICS // padded)
        parts = {"PARTS_A": self.query_gradients.parts, "PARTS_B": self.key_gradients.parts}
        launch = Launch(of_scales.remove_means, parts | {"ROWS": step, "WIDTH": padded})
        return Step(launch, (triton.cdiv(rows, step), 2, 1), (rows, self.width, self.elements))
