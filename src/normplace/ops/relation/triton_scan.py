"""The scan on a GPU: sums of chunks of time, one small pass over those, and the rows again; no atomics.

The rows of b are read twice, the second time with their statistics known and in the opposite order, so that part of
them is still in the cache. The backward pass is given a and b alone: it takes the same sums, then walks through time to
the gradient of a, leaving q of every row, and back through time, summing those up, to the gradient of b.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from normplace.ops.launch import Launch, current_stream
from normplace.ops.relation import scan_kernels
from normplace.ops.relation.plain import Rule
from normplace.ops.relation.planned import FORMS, Form, Scratch, Step
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
    """Rows a program walks through one by one, where there are enough for all programs that run at once."""
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
# Programs that run at once, sixteen on each multiprocessor of an H200. Chunks of fewer rows, or more chunks of a
# sequence, would take longer to accumulate than they spare.
AT_ONCE, SHORTEST, MOST_CHUNKS = 2048, 4, 1024
# Chunks, and channels of them, that are accumulated at a time, and the warps that do.
SLOTS, SLOT_WIDTH, SLOT_WARPS = 256, 8, 4
# What q of a row is kept in where it is not float32: the gradient it is summed into is rounded to no more digits.
KEPT = {torch.bfloat16: torch.bfloat16}


@dataclass(frozen=True)
class Plan:
    """How the kernels of a pass walk through time, and the launches that follow from it."""

    batch: int
    length: int
    channels: int
    heads: int
    rows: int
    chunk: int
    warps: int
    stages: int
    rule: Rule
    keep_top: bool
    masked: bool

    @property
    def chunks(self) -> int:
        """Chunks of one sequence."""
        return triton.cdiv(self.length, self.chunk)

    @property
    def slots(self) -> int:
        """Numbers in the sums of every chunk and the empty one."""
        return self.batch * (self.chunks + 1) * self.channels

    @property
    def tops(self) -> int:
        """Numbers in their largest exponents."""
        return self.slots if self.keep_top else 0

    @property
    def statistics(self) -> int:
        """Numbers in the means of rows, or their scales."""
        return self.batch * self.length * self.heads if self.rule.norm != "none" else 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """T, D, heads, channels of a head."""
        return self.length, self.channels, self.heads, self.channels // self.heads

    @property
    def lower(self) -> float | None:
        """The power of two that a y with a norm is divided by; None where that depends on y."""
        return 0.0 if self.keep_top else lowering(self.rule, self.channels)

    @property
    def root_eps(self) -> float:
        """The root of what is added to the variance of that."""
        return math.sqrt(self.rule.eps) * 2.0 ** -(self.lower or 0.0)

    @property
    def padded(self) -> tuple[int, int]:
        """Heads and channels of a head, as a tile has them."""
        return triton.next_power_of_2(self.heads), triton.next_power_of_2(self.channels // self.heads)

    @property
    def flags(self) -> dict[str, Any]:
        """What every kernel on rows is compiled for."""
        return {
            "NORM": self.rule.norm != "none",
            "STABLE": self.keep_top,
            "HEADS": self.padded[0],
            "WIDTH": self.padded[1],
            "EVEN": self.padded == (self.heads, self.channels // self.heads),
            "MASKED": self.masked,
            "WHOLE": not self.masked and self.length % self.chunk == 0,
        }

    @property
    def options(self) -> dict[str, Any]:
        """What the kernels that weigh rows are compiled for besides."""
        rule, lower = self.rule, self.lower
        return {
            "CAUSAL": rule.causal,
            "POST": rule.post_norm,
            "MEAN": rule.mean,
            "LOWER": lower or 0.0,
            "DIVIDE": lower is None,
            "EXACT": rule.eps == 0,
        }

    def step(self, kernel: Any, options: dict[str, Any], *numbers: float, stages: int) -> Step:
        """Of a kernel that walks through the chunks."""
        constants = self.flags | options | {"ROWS": self.rows, "CHUNK": self.chunk, "STAGES": stages}
        launch = Launch(kernel, constants, num_warps=self.warps)
        return Step(launch, (self.batch * self.chunks, 1, 1), (*self.sizes, *numbers, self.chunks))

    def key_sums(self) -> Step:
        """The sums of each chunk."""
        padded = self.padded[0] * self.padded[1]
        rows = min(self.chunk, SUMS.rows(self.length, padded))
        alone = dataclasses.replace(self, rows=rows, warps=SUMS.warps_of(rows * padded))
        return alone.step(kernels.key_sums, {}, self.rule.eps, stages=SUMS.stages)

    def accumulate(self, *, reverse: bool) -> Step:
        """The sums before each chunk, or after it."""
        slots = min(SLOTS, triton.next_power_of_2(self.chunks))
        constants = {"STABLE": self.keep_top, "REVERSE": reverse, "SLOTS": slots, "WIDTH": SLOT_WIDTH}
        launch = Launch(kernels.accumulate, constants, num_warps=SLOT_WARPS)
        return Step(launch, (self.batch, triton.cdiv(self.channels, SLOT_WIDTH), 1), (self.channels, self.chunks))


def _plan(form: Form, tile: Tile) -> Plan:
    rule, (batch, length, channels) = form.rule, form.shape
    heads = rule.heads if rule.norm != "none" else 1
    padded = triton.next_power_of_2(heads) * triton.next_power_of_2(channels // heads)
    rows = tile.rows(length, padded)
    least = max(SHORTEST, triton.cdiv(batch * length, AT_ONCE), triton.cdiv(length, MOST_CHUNKS))
    # Narrow rows, several side by side, were faster in shorter chunks on an H200.
    most = tile.chunk if rows == 1 else tile.chunk // 2
    chunk = max(rows, min(most, triton.next_power_of_2(least)))
    warps = tile.warps_of(rows * padded)
    keep_top = stable(rule, channels, form.dtype)
    return Plan(batch, length, channels, heads, rows, chunk, warps, tile.stages, rule, keep_top, form.masked)


class Forward(NamedTuple):
    """The launches of a forward pass, and what they leave each other."""

    scratch: Scratch
    """The sums before each chunk and of all time, their largest exponents; of each row, the mean, less its first
    channel but in bfloat16, and the scale."""
    key_sums: Step
    accumulate: Step
    relate: Step


@functools.lru_cache(maxsize=FORMS)
def _forward(form: Form) -> Forward:
    plan = _plan(form, FORWARD)
    return Forward(
        Scratch(plan.slots, plan.tops, plan.statistics, plan.statistics),
        plan.key_sums(),
        plan.accumulate(reverse=False),
        plan.step(kernels.relate, plan.options, form.rule.eps, plan.root_eps, stages=plan.stages),
    )


def forward(a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> Tensor:
    """As the reference."""
    device = a.device
    stream = current_stream(device)
    scratch, key_sums, accumulate, relate = _forward(Form.of(a, weight, rule))
    sums, tops, means, scales = scratch.take(device)
    y = torch.empty_like(a)
    key_sums(stream, b, weight, sums, tops, means, scales)
    accumulate(stream, sums, tops)
    relate(stream, a, b, weight, sums, tops, means, scales, y)
    return y


class Backward(NamedTuple):
    """The launches of a backward pass, and what they leave each other."""

    scratch: Scratch
    """As that of a forward pass, then sums after each chunk and their largest exponents, and the exponents of rows."""
    key_sums: Step
    accumulate: Step
    query_gradients: Step
    accumulate_later: Step
    key_gradients: Step


@functools.lru_cache(maxsize=FORMS)
def _backward(form: Form) -> Backward:
    plan = _plan(form, BACKWARD)
    exponents = math.prod(form.shape) if plan.keep_top and form.rule.causal else 0
    return Backward(
        Scratch(plan.slots, plan.tops, plan.statistics, plan.statistics, plan.slots, plan.tops, exponents),
        plan.key_sums(),
        plan.accumulate(reverse=False),
        plan.step(kernels.query_gradients, plan.options, form.rule.eps, plan.root_eps, stages=plan.stages),
        plan.accumulate(reverse=True),
        # More than one step under way slowed this one down on an H200.
        plan.step(kernels.key_gradients, {"CAUSAL": form.rule.causal}, stages=1),
    )


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """As the reference."""
    device = a.device
    stream = current_stream(device)
    steps = _backward(Form.of(a, weight, rule))
    sums, tops, means, scales, later, later_tops, exponents = steps.scratch.take(device)
    kept = torch.empty_like(a, dtype=KEPT.get(a.dtype, torch.float32)) if rule.causal else None
    da, db = torch.empty_like(a), torch.empty_like(b)
    steps.key_sums(stream, b, weight, sums, tops, means, scales)
    steps.accumulate(stream, sums, tops)
    steps.query_gradients(stream, grad, a, b, weight, sums, tops, means, scales, da, kept, exponents, later, later_tops)
    steps.accumulate_later(stream, later, later_tops)
    steps.key_gradients(stream, b, weight, means, scales, kept, exponents, later, later_tops, db)
    return da, db


def forget_launches() -> None:
    """Read the tiles again."""
    _forward.cache_clear()
    _backward.cache_clear()
