"""The scan on a GPU: sums of chunks of time, one small pass over those, and the rows again; no atomics.

The rows of b are read twice, the second time with their statistics known and in the opposite order, so that part of
them is still in the cache. The backward pass is given a and b alone: it takes the same sums, then walks through time to
the gradient of a, leaving q of every row, and back through time, summing those up, to the gradient of b.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from normplace.ops.relation import scan_kernels
from normplace.ops.relation.plain import Rule
from normplace.ops.relation.scan_reference import lowering, stable

# Launched with options and numbers that their Python signatures do not show.
kernels: Any = scan_kernels


@dataclass(frozen=True)
class Tile:
    """How a kernel is laid out."""

    elements: int
    """Rows side by side times channels, in one program."""
    warps: int
    chunk: int = 1
    """Rows a program walks through, at least."""
    stages: int = 1
    """Steps of that walk whose loads are under way."""

    def rows(self, length: int, padded: int) -> int:
        """Rows side by side where a row has ``padded`` channels."""
        return max(1, min(self.elements // padded, triton.next_power_of_2(length)))

    def warps_of(self, elements: int) -> int:
        """Warps of a program with so many: a row wider than a tile takes more of them."""
        return max(self.warps, min(MOST_WARPS, self.warps * elements // self.elements))


# Where a row is the work of one warp, its sums need no barrier.
SUMS = Tile(elements=2048, warps=1)
FORWARD = Tile(elements=1024, warps=1, chunk=16)
BACKWARD = Tile(elements=1024, warps=1, chunk=16, stages=2)
MOST_WARPS = 16
# Chunks, and channels of them, that are accumulated at a time, and the warps that do.
SLOTS, SLOT_WIDTH, SLOT_WARPS = 256, 8, 4
# What q of a row is kept in where it is not float32: the gradient it is summed into is rounded to no more digits.
KEPT = {torch.bfloat16: torch.bfloat16}


@dataclass(frozen=True)
class Plan:
    """The sizes a launch needs."""

    batch: int
    length: int
    channels: int
    heads: int
    rows: int
    chunk: int
    warps: int
    rule: Rule
    keep_top: bool

    @property
    def chunks(self) -> int:
        """Chunks of one sequence."""
        return triton.cdiv(self.length, self.chunk)

    def slots(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Room for the sums of every chunk and the empty one, and for their largest exponents."""
        shape = (self.batch, self.chunks + 1, self.channels)
        total = torch.empty(shape, dtype=torch.float32, device=like.device)
        return total, torch.empty_like(total) if self.keep_top else None

    @property
    def sizes(self) -> tuple[int, int, int, int, float]:
        """T, D, heads, channels of a head, eps."""
        return self.length, self.channels, self.heads, self.channels // self.heads, self.rule.eps

    @property
    def lower(self) -> float | None:
        """The power of two that a y with a norm is divided by; None where that depends on y."""
        return 0.0 if self.keep_top else lowering(self.rule, self.channels)

    @property
    def root_eps(self) -> float:
        """The root of what is added to the variance of that."""
        return math.sqrt(self.rule.eps) * 2.0 ** -(self.lower or 0.0)

    def flags(self, weight: Tensor | None) -> dict[str, Any]:
        """What every kernel on rows is compiled for."""
        heads, width = self.heads, self.channels // self.heads
        padded = triton.next_power_of_2(heads), triton.next_power_of_2(width)
        return {
            "NORM": self.rule.norm != "none",
            "STABLE": self.keep_top,
            "HEADS": padded[0],
            "WIDTH": padded[1],
            "EVEN": padded == (heads, width),
            "MASKED": weight is not None,
            "WHOLE": weight is None and self.length % self.chunk == 0,
        }

    def options(self, weight: Tensor | None) -> dict[str, Any]:
        """What the kernels that weigh rows are compiled for."""
        rule = self.rule
        return self.flags(weight) | {
            "POST": rule.post_norm,
            "MEAN": rule.mean,
            "CAUSAL": rule.causal,
            "LOWER": self.lower or 0.0,
            "DIVIDE": self.lower is None,
            "EXACT": rule.eps == 0,
        }


def plan(a: Tensor, rule: Rule, tile: Tile) -> Plan:
    """How a kernel walks through ``a``."""
    batch, length, channels = a.shape
    heads = rule.heads if rule.norm != "none" else 1
    padded = triton.next_power_of_2(heads) * triton.next_power_of_2(channels // heads)
    rows = tile.rows(length, padded)
    chunk = max(rows, min(tile.chunk, triton.next_power_of_2(length)))
    warps = tile.warps_of(rows * padded)
    return Plan(batch, length, channels, heads, rows, chunk, warps, rule, stable(rule, channels, a.dtype))


def _accumulate(plan: Plan, sums: Tensor, tops: Tensor | None, reverse: bool) -> None:
    kernels.accumulate[(plan.batch, triton.cdiv(plan.channels, SLOT_WIDTH))](
        sums, tops, plan.channels, plan.chunks, STABLE=plan.keep_top, REVERSE=reverse,
        SLOTS=min(SLOTS, triton.next_power_of_2(plan.chunks)), WIDTH=SLOT_WIDTH, num_warps=SLOT_WARPS,
    )  # fmt: skip


@dataclass(frozen=True)
class Keys:
    """What is known of the keys once they were read."""

    sums: Tensor
    """Before each chunk, and of all time."""
    tops: Tensor | None
    means: Tensor
    """Of each row, less its first channel but in bfloat16."""
    scales: Tensor

    @property
    def all(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """As the kernels take them."""
        return self.sums, self.tops, self.means, self.scales


def _keys(b: Tensor, weight: Tensor | None, plan: Plan) -> Keys:
    sums, tops = plan.slots(b)
    means, scales = b.new_empty(2, plan.batch, plan.length, plan.heads, dtype=torch.float32)
    flags = plan.flags(weight)
    padded = flags["HEADS"] * flags["WIDTH"]
    rows = min(plan.chunk, SUMS.rows(plan.length, padded))
    kernels.key_sums[(plan.batch * plan.chunks,)](
        b, weight, sums, tops, means, scales, *plan.sizes, plan.chunks, ROWS=rows, CHUNK=plan.chunk,
        STAGES=SUMS.stages, num_warps=SUMS.warps_of(rows * padded), **flags,
    )  # fmt: skip
    _accumulate(plan, sums, tops, reverse=False)
    return Keys(sums, tops, means, scales)


def forward(a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> Tensor:
    """As the reference."""
    layout = plan(a, rule, FORWARD)
    y = torch.empty_like(a)
    kernels.relate[(layout.batch * layout.chunks,)](
        a, b, weight, *_keys(b, weight, layout).all, y, *layout.sizes, layout.root_eps, layout.chunks,
        ROWS=layout.rows, CHUNK=layout.chunk, STAGES=FORWARD.stages, num_warps=layout.warps,
        **layout.options(weight),
    )  # fmt: skip
    return y


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """As the reference."""
    layout = plan(a, rule, BACKWARD)
    da, db = torch.empty_like(a), torch.empty_like(b)
    keys = _keys(b, weight, layout)
    later, later_tops = layout.slots(a)
    kept = torch.empty(a.shape if rule.causal else 0, dtype=KEPT.get(a.dtype, torch.float32), device=a.device)
    exponents = torch.empty_like(kept, dtype=torch.float32) if layout.keep_top else None
    grid = (layout.batch * layout.chunks,)
    shape = {"ROWS": layout.rows, "CHUNK": layout.chunk, "STAGES": BACKWARD.stages, "num_warps": layout.warps}
    kernels.query_gradients[grid](
        grad, a, b, weight, *keys.all, da, kept, exponents, later, later_tops, *layout.sizes, layout.root_eps,
        layout.chunks, **shape, **layout.options(weight),
    )  # fmt: skip
    _accumulate(layout, later, later_tops, reverse=True)
    # More than one step under way slowed this one down on an H200.
    kernels.key_gradients[grid](
        b, weight, keys.means, keys.scales, kept, exponents, later, later_tops, db, *layout.sizes[:4], layout.chunks,
        CAUSAL=rule.causal, **shape | {"STAGES": 1}, **layout.flags(weight),
    )  # fmt: skip
    return da, db
