"""The launches of the pairwise kernels for one shape, and how their work is divided among programs."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from normplace.ops.launch import KernelCall, Launch
from normplace.ops.layouts import gpu_limits
from normplace.ops.relation import layouts, pair_kernels, scale_kernels
from normplace.ops.relation.common import RelationKey
from normplace.ops.relation.layouts import PairTile

# Typed as Any because launches pass options and numbers that the Python signatures do not show.
kernels: Any = pair_kernels
kernels_of_scales: Any = scale_kernels


class PairWork(NamedTuple):
    """How a kernel on every channel of a pair is divided among programs."""

    kernel: Any
    tile: PairTile
    columns: int
    """Programs along the channels."""
    paired: bool
    """Whether a program processes two tiles, a long and a short one."""
    splits: int
    """Parts that the summed keys or queries are split into."""


@dataclass(frozen=True)
class PairPlan:
    """The sizes of a pairwise relation, and the launch of each of its kernels."""

    key: RelationKey

    @property
    def length(self) -> int:
        """T."""
        return self.key.shape[1]

    @property
    def channels(self) -> int:
        """D."""
        return self.key.shape[2]

    @property
    def heads(self) -> int:
        """Groups of channels."""
        return self.key.spec.heads

    @property
    def width(self) -> int:
        """Channels of a head."""
        return self.channels // self.heads

    @property
    def num_heads(self) -> int:
        """Heads of all sequences together."""
        return self.key.shape[0] * self.heads

    @property
    def elements(self) -> int:
        """Elements of a, and of the result."""
        return math.prod(self.key.shape)

    @property
    def norm(self) -> bool:
        """Whether pairs are normalized."""
        return self.key.spec.norm == "joint"

    @property
    def half(self) -> bool:
        """Whether inputs are in half precision, whose products are exact in float32."""
        return self.key.dtype != torch.float32

    @property
    def stride(self) -> int:
        """Stride between rows of the pairs' scales: one more than the length, so that the diagonal is stored twice."""
        return self.length + 1

    @property
    def slices(self) -> list[tuple[int, int]]:
        """Start and number of the sequences and heads that are processed at a time."""
        fits = max(1, layouts.PAIR_SCRATCH // (self.length * self.stride)) if self.norm else self.num_heads
        step = min(self.num_heads, layouts.PAIR_MAX_SLICE, fits)
        return [(first, min(step, self.num_heads - first)) for first in range(0, self.num_heads, step)]

    @property
    def num_scales(self) -> int:
        """Scales of pairs that are stored at a time."""
        return self.slices[0][1] * self.length * self.stride if self.norm else 1

    @property
    def rows_scratch(self) -> tuple[int, ...]:
        """Elements of the means and squares of the rows of a, those of b, and the weights."""
        # At least one, because kernels compute addresses relative to it.
        statistics = self.num_heads * self.length if self.norm else 1
        return *[statistics] * 4, 0 if self.key.masked else self.key.shape[0] * self.length

    @property
    def num_deferred(self) -> int:
        """Tiles of pairs whose scales may be deferred to a second, exact kernel."""
        return (
            self.slices[0][1] * triton.cdiv(self.length, layouts.PAIR_SCALES.rows) ** 2
            if self.norm and self.half
            else 1
        )

    def statistics(self) -> KernelCall | None:
        """Mean and square of every row, and its weight."""
        spec, padded = self.key.spec, triton.next_power_of_2(self.width)
        if self.key.masked and not self.norm:
            return None
        rows = max(1, layouts.PAIR_STATISTICS // padded)
        constants = {
            "NORM": self.norm, "MASKED": self.key.masked, "MEAN": spec.mean, "CAUSAL": spec.causal, "ROWS": rows,
            "WIDTH": padded,
        }  # fmt: skip
        grid = (self.num_heads * triton.cdiv(self.length, rows), 2 if self.norm else 1, 1)
        numbers = (self.length, self.channels, self.heads, self.width)
        return KernelCall(Launch(kernels_of_scales.row_statistics, constants), grid, numbers)

    def scales(self, count: int) -> tuple[KernelCall, ...]:
        """The scales of all pairs."""
        if not self.norm:
            return ()
        tile = layouts.PAIR_SCALES
        spec, tiles = self.key.spec, triton.cdiv(self.length, tile.rows)
        gain = math.log2(math.e) if spec.activation == "exp" else 1.0
        constants = {"CAUSAL": spec.causal, "GAIN": gain, "ROWS": tile.rows}
        # The interpreter stores bfloat16 as integers and would multiply those.
        widen = os.environ.get("TRITON_INTERPRET") == "1"
        quick = constants | {"COLS": layouts.PAIR_HALF_STEP, "WIDEN": widen}
        exact = constants | {"COLS": tile.cols, "FLAT": spec.activation == "relu", "LEFT": self.half}
        launches = [Launch(kernels_of_scales.quick_scales, quick, num_warps=self.warps(tile))] if self.half else []
        launches.append(Launch(kernels_of_scales.pair_scales, exact, num_warps=self.warps(tile)))
        numbers = (self.length, self.channels, self.heads, self.width, spec.eps, self.stride)
        return tuple(KernelCall(launch, (tiles, tiles, count), numbers) for launch in launches)

    def warps(self, tile: PairTile) -> int:
        """Warps of a program, within the limits of the GPU."""
        return gpu_limits(self.key.device).warps(tile.warps)

    def work(self, kernel: Any, tile: PairTile, columns: int) -> PairWork:
        """Divide a kernel's work among enough programs to fill the GPU, if there is enough of it."""
        warps = self.slices[0][1] * triton.cdiv(self.length, tile.rows) * columns * tile.warps
        few, causal = warps <= layouts.PAIR_CONCURRENT_WARPS, self.key.spec.causal
        wanted = layouts.PAIR_ENOUGH_WARPS * (2 if causal else 1) // warps if few and self.norm else 1
        longest = self.length // layouts.PAIR_MIN_SPLIT
        splits = max(1, min(wanted, longest, layouts.PAIR_MAX_SPLIT_ELEMENTS // self.elements))
        return PairWork(kernel, tile, columns, few and causal, splits)

    @property
    def relate(self) -> PairWork:
        """Work of the forward pass."""
        tile = layouts.PAIR_FORWARD
        return self.work(kernels.relate, tile, triton.cdiv(self.width, tile.cols))

    @property
    def query_gradients(self) -> PairWork:
        """Work of the first half of the backward pass, where a program needs all channels."""
        wide = layouts.PAIR_WIDE_QUERIES
        tile = wide if self.half and self.width % wide.cols == 0 else layouts.PAIR_QUERIES
        return self.work(kernels.query_gradients, tile, 1)

    @property
    def key_gradients(self) -> PairWork:
        """Work of the second half of the backward pass."""
        tile = layouts.PAIR_KEYS
        return self.work(kernels.key_gradients, tile, triton.cdiv(self.width, tile.cols))

    def on_pairs(self, work: PairWork, count: int) -> KernelCall:
        """The call of a kernel on every channel of a pair."""
        spec, tile, tiles = self.key.spec, work.tile, triton.cdiv(self.length, work.tile.rows)
        constants = {
            "D": self.channels, "ACT": spec.activation, "NORM": self.norm, "MASKED": self.key.masked,
            "CAUSAL": spec.causal, "EVEN": self.width % tile.cols == 0, "ROWS": tile.rows, "COLS": tile.cols,
            "UNROLL": tile.unroll, "PAIRED": work.paired, "PARTS": work.splits,
        }  # fmt: skip
        grid = (count * (triton.cdiv(tiles, 2) if work.paired else tiles), work.columns, work.splits)
        numbers = (count, self.length, self.heads, self.width, self.stride, self.elements)
        return KernelCall(Launch(work.kernel, constants, num_warps=self.warps(tile)), grid, numbers)

    def add_splits(self) -> KernelCall | None:
        """The sum of the splits of the forward pass."""
        if self.relate.splits == 1:
            return None
        launch = Launch(kernels.add_parts, {"PARTS": self.relate.splits, "BLOCK": layouts.PAIR_SUM_BLOCK})
        grid = (triton.cdiv(self.elements, layouts.PAIR_SUM_BLOCK), 1, 1)
        return KernelCall(launch, grid, (self.elements, self.channels))

    def through_scale(self, count: int) -> KernelCall | None:
        """The part of both gradients through the scales."""
        if not self.norm:
            return None
        tile = layouts.PAIR_THROUGH_SCALE if self.half else layouts.PAIR_THROUGH_FLOAT32_SCALE
        constants = {
            "MASKED": self.key.masked, "CAUSAL": self.key.spec.causal, "PRECISION": "tf32" if self.half else "tf32x3",
            "ROWS": tile.rows, "COLS": tile.cols, "STEP": tile.unroll,
        }  # fmt: skip
        grid = (triton.cdiv(self.length, tile.rows), triton.cdiv(self.width, tile.cols), 2 * count)
        numbers = (self.length, self.channels, self.heads, self.width, self.stride)
        return KernelCall(
            Launch(kernels_of_scales.add_through_scale, constants, num_warps=self.warps(tile)), grid, numbers
        )

    def remove_means(self) -> KernelCall | None:
        """The gradients through the means that are subtracted from pairs."""
        if not self.norm:
            return None
        padded = triton.next_power_of_2(self.width)
        rows, step = self.num_heads * self.length, max(1, layouts.PAIR_STATISTICS // padded)
        parts = {"PARTS_A": self.query_gradients.splits, "PARTS_B": self.key_gradients.splits}
        launch = Launch(kernels_of_scales.remove_means, parts | {"ROWS": step, "WIDTH": padded})
        return KernelCall(launch, (triton.cdiv(rows, step), 2, 1), (rows, self.width, self.elements))
