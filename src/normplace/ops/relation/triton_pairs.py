"""Pairs on a GPU: a matrix product for their scales, then one activation for each channel of a pair; no atomics.

The scales are one number a pair, of as many sequences at a time as fit in :data:`SCRATCH`. For the backward pass they
are computed again, and what each pair passes on through its scale is kept in the half of that room that causal pairs
leave empty.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from normplace.ops.relation import pair_kernels, scale_kernels
from normplace.ops.relation.plain import Rule, weights

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
KEYS = Tile(rows=16, cols=64, warps=4, unroll=4)
THROUGH_SCALE = Tile(rows=64, cols=64, warps=4, unroll=32)
# Elements of the rows whose mean is taken by one program.
STATISTICS = 4096
# Numbers kept for pairs at a time, 1 GiB; at least those of one sequence.
SCRATCH = 1 << 28
# Programs along the last axis of a grid.
MOST = 1 << 15


@dataclass(frozen=True)
class Problem:
    """What every kernel reads."""

    a: Tensor
    b: Tensor
    weight: Tensor
    """B × T."""
    masked: bool
    rule: Rule
    means: tuple[Tensor, Tensor]
    squares: tuple[Tensor, Tensor]

    @property
    def length(self) -> int:
        """T."""
        return self.a.shape[1]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """T, D, heads, channels of a head."""
        channels, heads = self.a.shape[2], self.rule.heads
        return self.length, channels, heads, channels // heads

    @property
    def norm(self) -> bool:
        """Whether pairs are normalized."""
        return self.rule.norm == "joint"

    @property
    def half(self) -> bool:
        """Whether products of two numbers are exact in float32."""
        return self.a.dtype != torch.float32

    @property
    def stride(self) -> int:
        """Between the rows of the room for pairs: one longer, so that those on the diagonal are kept twice."""
        return self.length + 1

    @property
    def options(self) -> dict[str, Any]:
        """What every kernel on pairs is compiled for."""
        rule = self.rule
        return {"ACT": rule.activation, "NORM": self.norm, "MASKED": self.masked, "CAUSAL": rule.causal}

    def layout(self, tile: Tile) -> dict[str, Any]:
        """How a kernel on pairs is compiled."""
        even = self.sizes[3] % tile.cols == 0
        return {"EVEN": even, "ROWS": tile.rows, "COLS": tile.cols, "UNROLL": tile.unroll, "num_warps": tile.warps}

    def slices(self) -> Iterator[tuple[int, int]]:
        """First and number of the sequences and heads taken at a time."""
        every = len(self.a) * self.rule.heads
        step = min(every, MOST, max(1, SCRATCH // (self.length * self.stride)) if self.norm else every)
        for first in range(0, every, step):
            yield first, min(step, every - first)

    def room(self, count: int) -> Tensor:
        """For one number a pair, where pairs are normalized."""
        count = count if self.norm else 0
        return torch.empty(count, self.length, self.stride, dtype=torch.float32, device=self.a.device)


def _problem(a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> Problem:
    masked = weight is not None
    if weight is None:
        like = a.new_empty(0, dtype=torch.float32)
        weight = weights(None, a.shape[1], rule, like).expand(a.shape[:2]).contiguous()
    else:
        # Whatever padding holds.
        a, b = (torch.where(weight[..., None] > 0, x, 0) for x in (a, b))
    (mean_a, square_a), (mean_b, square_b) = (_row_statistics(x, rule) for x in (a, b))
    return Problem(a, b, weight, masked, rule, (mean_a, mean_b), (square_a, square_b))


def _row_statistics(x: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """The mean and the sum of squares about it of each row, sequences × heads × T; unset where none is needed."""
    (batch, length, channels), heads = x.shape, rule.heads
    mean = torch.empty(batch * heads, length, dtype=torch.float32, device=x.device)
    square = torch.empty_like(mean)
    if rule.norm != "joint":
        return mean, square
    padded = triton.next_power_of_2(channels // heads)
    rows = max(1, STATISTICS // padded)
    of_scales.row_statistics[(batch * heads * triton.cdiv(length, rows),)](
        x, mean, square, length, channels, heads, channels // heads, ROWS=rows, WIDTH=padded
    )
    return mean, square


def _scales(given: Problem, scale: Tensor, first: int, count: int) -> None:
    if not given.norm:
        return
    tiles, half = triton.cdiv(given.length, SCALES.rows), given.half
    (mean_a, mean_b), (square_a, square_b) = given.means, given.squares
    left = torch.empty(count * tiles * tiles if half else 0, dtype=torch.int32, device=scale.device)
    common = (
        given.a, given.b, mean_a, square_a, mean_b, square_b, scale, left, first, *given.sizes, given.rule.eps,
        given.stride,
    )  # fmt: skip
    gain = math.log2(math.e) if given.rule.activation == "exp" else 1.0
    layout = {"CAUSAL": given.rule.causal, "GAIN": gain, "ROWS": SCALES.rows, "num_warps": SCALES.warps}
    if half:
        # The interpreter would multiply bfloat16 by its bits.
        widen = os.environ.get("TRITON_INTERPRET") == "1"
        of_scales.quick_scales[(tiles, tiles, count)](*common, WIDEN=widen, COLS=QUICK_STEP, **layout)
    of_scales.pair_scales[(tiles, tiles, count)](
        *common, FLAT=given.rule.activation == "relu", LEFT=half, COLS=SCALES.cols, **layout
    )


def forward(a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> Tensor:
    """As the reference."""
    given = _problem(a, b, weight, rule)
    y = torch.empty(a.shape, dtype=torch.float32, device=a.device)
    for first, count in given.slices():
        scale = given.room(count)
        _scales(given, scale, first, count)
        grid = (count * triton.cdiv(given.length, FORWARD.rows), triton.cdiv(given.sizes[3], FORWARD.cols))
        kernels.relate[grid](
            given.a, given.b, *given.means, scale, given.weight, y, first, count, *given.sizes, given.stride,
            **given.options, **given.layout(FORWARD),
        )  # fmt: skip
    return y


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """As the reference."""
    given = _problem(a, b, weight, rule)
    da, db = (torch.empty(a.shape, dtype=torch.float32, device=a.device) for _ in range(2))
    for first, count in given.slices():
        _gradients(given, grad, da, db, first, count)
    return (_less_means(da, given), _less_means(db, given)) if given.norm else (da, db)


def _less_means(d: Tensor, given: Problem) -> Tensor:
    """A gradient through the mean that pairs are taken less of, in the precision of the rows."""
    width = given.sizes[3]
    padded = triton.next_power_of_2(width)
    rows, step = d.numel() // width, max(1, STATISTICS // padded)
    out = torch.empty_like(given.a)
    of_scales.remove_means[(triton.cdiv(rows, step),)](d, out, rows, width, ROWS=step, WIDTH=padded)
    return out


def _gradients(given: Problem, grad: Tensor, da: Tensor, db: Tensor, first: int, count: int) -> None:
    scale = given.room(count)
    _scales(given, scale, first, count)
    # Of the pair (i, j) with j <= i, element [i, j] is its scale, and [j, i + 1] its factor c.
    factors, strides = scale, (1, given.stride)
    if given.norm and given.rule.causal:
        factors = scale.view(-1)[1:]
    elif given.norm:
        factors, strides = torch.empty_like(scale), (given.stride, 1)
    rows, common = given.length, (first, count, *given.sizes, given.stride)
    kernels.query_gradients[(count * triton.cdiv(rows, QUERIES.rows),)](
        grad, given.a, given.b, *given.means, scale, factors, given.weight, da, *common, *strides,
        **given.options, **given.layout(QUERIES),
    )  # fmt: skip
    kernels.key_gradients[(count * triton.cdiv(rows, KEYS.rows), triton.cdiv(given.sizes[3], KEYS.cols))](
        grad, given.a, given.b, *given.means, scale, given.weight, db, *common, **given.options, **given.layout(KEYS)
    )
    if not given.norm:
        return
    tile, means = THROUGH_SCALE, given.means
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(given.sizes[3], tile.cols), count)
    for keys, own, other, out in ((False, given.a, given.b, da), (True, given.b, given.a, db)):
        of_scales.add_through_scale[grid](
            own, other, *(means[::-1] if keys else means), factors, given.weight, out, first, *given.sizes,
            given.stride, *(strides[::-1] if keys else strides), MASKED=given.masked, CAUSAL=given.rule.causal,
            KEYS=keys, PRECISION="tf32" if given.half else "tf32x3", ROWS=tile.rows, COLS=tile.cols, STEP=tile.unroll,
            num_warps=tile.warps,
        )  # fmt: skip
