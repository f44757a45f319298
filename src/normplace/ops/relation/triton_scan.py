"""The scan on a GPU: sums of chunks of time, a small pass over those, and a second pass over the rows; no atomics.

The rows of b are read twice, the second time in the opposite order, so that part of them is still in the cache. The
backward pass recomputes the sums from a and b, then computes the gradient of a and q of every row forward in time, and
from sums of q the gradient of b backward in time.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from normplace.ops.launch import KernelCall, Launch, Scratch, cached_plan, current_stream
from normplace.ops.layouts import gpu_limits
from normplace.ops.relation import layouts, scan_kernels
from normplace.ops.relation.common import RelationKey, RelationSpec
from normplace.ops.relation.layouts import ScanTile
from normplace.ops.relation.scan_reference import keeps_top, lowering

# Typed as Any because launches pass options and numbers that the Python signatures do not show.
kernels: Any = scan_kernels


@dataclass(frozen=True)
class ScanPlan:
    """How the kernels of a pass process time, and the launches that follow from it."""

    batch: int
    length: int
    channels: int
    heads: int
    rows: int
    chunk: int
    warps: int
    stages: int
    spec: RelationSpec
    keep_top: bool
    masked: bool
    device: torch.device

    @property
    def chunks(self) -> int:
        """Chunks of one sequence."""
        return triton.cdiv(self.length, self.chunk)

    @property
    def slots(self) -> int:
        """Elements of the sums before each chunk and after the last."""
        return self.batch * (self.chunks + 1) * self.channels

    @property
    def tops(self) -> int:
        """Elements of the largest exponents of those sums."""
        return self.slots if self.keep_top else 0

    @property
    def statistics(self) -> int:
        """Elements of the rows' means, or of their scales."""
        return self.batch * self.length * self.heads if self.spec.norm != "none" else 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """T, D, heads, channels of a head."""
        return self.length, self.channels, self.heads, self.channels // self.heads

    @property
    def lower(self) -> float | None:
        """log2 of the divisor of y before its post-norm; None if the divisor depends on y."""
        return 0.0 if self.keep_top else lowering(self.spec, self.channels)

    @property
    def root_eps(self) -> float:
        """The square root of eps, divided like y."""
        return math.sqrt(self.spec.eps) * 2.0 ** -(self.lower or 0.0)

    @property
    def padded(self) -> tuple[int, int]:
        """Heads and channels of a head, padded to powers of two."""
        return triton.next_power_of_2(self.heads), triton.next_power_of_2(self.channels // self.heads)

    @property
    def flags(self) -> dict[str, Any]:
        """The constants of every kernel on rows."""
        return {
            "NORM": self.spec.norm != "none",
            "STABLE": self.keep_top,
            "HEADS": self.padded[0],
            "WIDTH": self.padded[1],
            "EVEN": self.padded == (self.heads, self.channels // self.heads),
            "MASKED": self.masked,
            "WHOLE": not self.masked and self.length % self.chunk == 0,
        }

    @property
    def options(self) -> dict[str, Any]:
        """Further constants of the kernels that apply weights."""
        spec, lower = self.spec, self.lower
        return {
            "CAUSAL": spec.causal,
            "POST": spec.post_norm,
            "MEAN": spec.mean,
            "LOWER": lower or 0.0,
            "DIVIDE": lower is None,
            "EXACT": spec.eps == 0,
        }

    def call(self, kernel: Any, options: dict[str, Any], *numbers: float, stages: int) -> KernelCall:
        """The call of a kernel on all chunks."""
        constants = self.flags | options | {"ROWS": self.rows, "CHUNK": self.chunk, "STAGES": stages}
        launch = Launch(kernel, constants, num_warps=self.warps)
        return KernelCall(launch, (self.batch * self.chunks, 1, 1), (*self.sizes, *numbers, self.chunks))

    def key_sums(self) -> KernelCall:
        """The sums of each chunk."""
        padded, tile = self.padded[0] * self.padded[1], layouts.SCAN_SUMS
        rows = min(self.chunk, tile.rows(self.length, padded))
        warps = gpu_limits(self.device).warps(tile.warps_for(rows * padded))
        own = dataclasses.replace(self, rows=rows, warps=warps)
        return own.call(kernels.key_sums, {}, self.spec.eps, stages=tile.stages)

    def accumulate(self, *, reverse: bool) -> KernelCall:
        """The sums before each chunk, or after it."""
        slots = min(layouts.SCAN_SLOTS, triton.next_power_of_2(self.chunks))
        constants = {"STABLE": self.keep_top, "REVERSE": reverse, "SLOTS": slots, "WIDTH": layouts.SCAN_SLOT_WIDTH}
        launch = Launch(kernels.accumulate, constants, num_warps=layouts.SCAN_SLOT_WARPS)
        grid = (self.batch, triton.cdiv(self.channels, layouts.SCAN_SLOT_WIDTH), 1)
        return KernelCall(launch, grid, (self.channels, self.chunks))


def _plan(key: RelationKey, tile: ScanTile) -> ScanPlan:
    spec, (batch, length, channels) = key.spec, key.shape
    heads = spec.heads if spec.norm != "none" else 1
    padded = triton.next_power_of_2(heads) * triton.next_power_of_2(channels // heads)
    rows = tile.rows(length, padded)
    least = max(
        layouts.SCAN_MIN_CHUNK,
        triton.cdiv(batch * length, layouts.SCAN_CONCURRENT),
        triton.cdiv(length, layouts.SCAN_MAX_CHUNKS),
    )
    # Several narrow rows at a time were faster in shorter chunks.
    most = tile.chunk if rows == 1 else tile.chunk // 2
    chunk = max(rows, min(most, triton.next_power_of_2(least)))
    warps = gpu_limits(key.device).warps(tile.warps_for(rows * padded))
    keep_top = keeps_top(spec, channels, key.dtype)
    return ScanPlan(
        batch, length, channels, heads, rows, chunk, warps, tile.stages, spec, keep_top, key.masked, key.device
    )


class ScanForwardPlan(NamedTuple):
    """The launches of a forward pass and their scratch memory."""

    scratch: Scratch
    """The sums before each chunk and after the last, their largest exponents, and the mean (minus the first channel,
    except in bfloat16) and scale of each row."""
    key_sums: KernelCall
    accumulate: KernelCall
    relate: KernelCall


@cached_plan
def _forward_plan(key: RelationKey) -> ScanForwardPlan:
    plan = _plan(key, layouts.SCAN_FORWARD)
    return ScanForwardPlan(
        Scratch(plan.slots, plan.tops, plan.statistics, plan.statistics),
        plan.key_sums(),
        plan.accumulate(reverse=False),
        plan.call(kernels.relate, plan.options, key.spec.eps, plan.root_eps, stages=plan.stages),
    )


def forward(a: Tensor, b: Tensor, weight: Tensor | None, spec: RelationSpec) -> Tensor:
    """See :func:`scan_reference.forward`."""
    device = a.device
    stream = current_stream(device)
    scratch, key_sums, accumulate, relate = _forward_plan(RelationKey.of(a, weight, spec))
    sums, tops, means, scales = scratch.allocate(device)
    y = torch.empty_like(a)
    key_sums(stream, b, weight, sums, tops, means, scales)
    accumulate(stream, sums, tops)
    relate(stream, a, b, weight, sums, tops, means, scales, y)
    return y


class ScanBackwardPlan(NamedTuple):
    """The launches of a backward pass and their scratch memory."""

    scratch: Scratch
    """As in a forward pass; then the sums after each chunk, their largest exponents, and the exponents of rows."""
    key_sums: KernelCall
    accumulate: KernelCall
    query_gradients: KernelCall
    accumulate_later: KernelCall
    key_gradients: KernelCall


@cached_plan
def _backward_plan(key: RelationKey) -> ScanBackwardPlan:
    plan = _plan(key, layouts.SCAN_BACKWARD)
    exponents = math.prod(key.shape) if plan.keep_top and key.spec.causal else 0
    return ScanBackwardPlan(
        Scratch(plan.slots, plan.tops, plan.statistics, plan.statistics, plan.slots, plan.tops, exponents),
        plan.key_sums(),
        plan.accumulate(reverse=False),
        plan.call(kernels.query_gradients, plan.options, key.spec.eps, plan.root_eps, stages=plan.stages),
        plan.accumulate(reverse=True),
        plan.call(kernels.key_gradients, {"CAUSAL": key.spec.causal}, stages=layouts.SCAN_KEY_STAGES),
    )


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """See :func:`scan_reference.backward`."""
    device = a.device
    stream = current_stream(device)
    plan = _backward_plan(RelationKey.of(a, weight, spec))
    sums, tops, means, scales, later, later_tops, exponents = plan.scratch.allocate(device)
    q = torch.empty_like(a, dtype=layouts.SCAN_Q_DTYPES.get(a.dtype, torch.float32)) if spec.causal else None
    da, db = torch.empty_like(a), torch.empty_like(b)
    plan.key_sums(stream, b, weight, sums, tops, means, scales)
    plan.accumulate(stream, sums, tops)
    plan.query_gradients(stream, grad, a, b, weight, sums, tops, means, scales, da, q, exponents, later, later_tops)
    plan.accumulate_later(stream, later, later_tops)
    plan.key_gradients(stream, b, weight, means, scales, q, exponents, later, later_tops, db)
    return da, db
