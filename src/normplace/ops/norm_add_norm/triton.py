"""The boundary on a GPU: one pass forward and one backward, each row in registers from its read to its write.

Forward reads f and x and writes the stream and y; backward reads their gradients, the stream and f, and writes two
gradients. Gradients of gains are summed by each program over its rows, then over programs by a small kernel: no
atomics, the same bits every time.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from normplace.ops.norm_add_norm import triton_kernels
from normplace.ops.norm_add_norm.reference import Given, Grads, Needs, Rule

# Launched with options and numbers that their Python signatures do not show.
kernels: Any = triton_kernels
KINDS = {"none": 0, "rms": 1, "layer": 2}


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


# By the width padded to a power of two; narrower rows share the tile of the narrowest class, several to its row. The
# classes from 1024 to 8192 are the fastest of those tried on an H200 in bfloat16; the others are guesses.
FORWARD = {
    256: Tile(rows=8, warps=4),
    512: Tile(rows=4, warps=4),
    1024: Tile(rows=2, warps=2),
    2048: Tile(rows=1, warps=4),
    4096: Tile(rows=2, warps=8),
    8192: Tile(rows=1, warps=4),
    16384: Tile(rows=1, warps=32),
}
# A norm that takes the mean out reduces twice, and wants fewer threads that wait for each other.
FORWARD_CENTRED = FORWARD | {
    1024: Tile(rows=1, warps=1),
    4096: Tile(rows=1, warps=4),
    8192: Tile(rows=1, warps=16),
}
BACKWARD = {
    256: Tile(rows=8, warps=4, per_sm=4, stages=2),
    512: Tile(rows=4, warps=4, per_sm=4, stages=2),
    1024: Tile(rows=2, warps=4, per_sm=2, stages=3),
    2048: Tile(rows=2, warps=4, per_sm=2, stages=2),
    4096: Tile(rows=1, warps=8, per_sm=2, stages=3),
    8192: Tile(rows=1, warps=16, per_sm=2, stages=3),
    16384: Tile(rows=1, warps=32, per_sm=1),
}
# With gradients of shifts a program keeps twice as many sums.
BACKWARD_SHIFTS = {
    256: Tile(rows=4, warps=4, per_sm=5, stages=2),
    512: Tile(rows=2, warps=4, per_sm=5, stages=2),
    1024: Tile(rows=2, warps=4, per_sm=2, stages=3),
    2048: Tile(rows=1, warps=4, per_sm=2, stages=3),
    4096: Tile(rows=2, warps=16, per_sm=2, stages=3),
    8192: Tile(rows=1, warps=16, per_sm=2),
    16384: Tile(rows=1, warps=32, per_sm=1),
}
# Programs' parts added at a time, and channels of each program that adds them.
CHUNK, SPAN = 128, 32
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


def _layout(
    table: dict[int, Tile],
    rows: int,
    width: int,
    device: torch.device,
    streamed: tuple[Tensor | None, ...],
    channels: tuple[Tensor | None, ...],
) -> tuple[int, dict[str, Any]]:
    """How many programs there are, and the options of a kernel that reads these tensors by rows and by channels."""
    block = 1 << (width - 1).bit_length()
    narrowest = min(table)
    tile = table[max(block, narrowest)]
    tall = tile.rows * max(1, narrowest // block)
    programs = -(-rows // tall)
    multiprocessors, shared = _machine(device)
    if tile.per_sm:
        programs = min(programs, tile.per_sm * multiprocessors)
    sizes = tall * sum(t.element_size() for t in streamed if t is not None)
    sizes += sum(t.element_size() for t in channels if t is not None)
    stages = tile.stages if (tile.stages - 1) * block * sizes <= shared else 1
    return programs, {"ROWS": tall, "BLOCK": block, "STAGES": stages, "num_warps": tile.warps}


def _rows(tensor: Tensor, width: int) -> Tensor:
    """The tensor as rows whose elements lie side by side, copied only where they do not."""
    flat = tensor if tensor.dim() == 2 else tensor.reshape(-1, width)
    return flat if width == 1 or flat.stride(1) == 1 else flat.contiguous()


def _constants(given: Given, rule: Rule, width: int) -> dict[str, Any]:
    return {
        "D": width,
        "OFFSET": rule.unit_offset,
        "PER_CHANNEL": given.branch is not None and given.branch.numel() > 1,
    }


def forward(x: Tensor, f: Tensor, given: Given, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """As the reference."""
    width = x.shape[-1]
    x_rows, f_rows = _rows(x, width), _rows(f, width)
    rows = len(x_rows)
    stream = torch.empty(x.shape, dtype=rule.stream_dtype, device=x.device)
    y = torch.empty(x.shape if rule.in_norm != "none" else 0, dtype=rule.f_dtype, device=x.device)
    stats = torch.empty(rows, rule.num_statistics, dtype=torch.float32, device=x.device)
    programs, layout = _layout(FORWARD, rows, width, x.device, (x, f), given[:5])
    kernels.forward[(programs,)](
        x_rows, f_rows, x_rows.stride(0), f_rows.stride(0), *given, stream, y, stats, rows,
        rule.out_eps, rule.in_eps, rule.skip, rule.branch, rule.dropout,
        OUT=KINDS[rule.out_norm], IN=KINDS[rule.in_norm], KEPT=rule.num_statistics,
        **_constants(given, rule, width), **layout,
    )  # fmt: skip
    return stream, y, stats


def backward(
    d_stream: Tensor | None,
    d_y: Tensor | None,
    stream: Tensor | None,
    f: Tensor | None,
    stats: Tensor,
    given: Given,
    rule: Rule,
    needs: Needs,
) -> Grads:
    """As the reference."""
    like = d_stream if d_stream is not None else d_y
    assert like is not None
    shape, width, device = like.shape, like.shape[-1], like.device
    rows = like.numel() // width
    f_rows = None if f is None else _rows(f, width)
    dx = torch.empty(shape, dtype=rule.x_dtype, device=device) if needs.x else None
    df = torch.empty(shape, dtype=rule.f_dtype, device=device) if needs.f else None

    def alike(tensor: Tensor | None, needed: bool) -> Tensor | None:
        return torch.empty_like(tensor) if needed and tensor is not None else None

    d_out_scale, d_in_scale = alike(given.out_scale, needs.out_scale), alike(given.in_scale, needs.in_scale)
    asked = (
        needs.out_weight or needs.branch,
        needs.out_bias or (needs.branch and given.out_bias is not None),
        needs.in_weight,
        needs.in_bias,
    )
    table = BACKWARD_SHIFTS if asked[1] or asked[3] else BACKWARD
    # Gradients of the rows' scales read gains and shifts once more.
    channels = given[:5] * 2 if needs.out_scale or needs.in_scale else (given.out_weight, given.in_weight, given.branch)
    programs, layout = _layout(table, rows, width, device, (d_stream, d_y, stream, f), channels)
    parts: list[Tensor | None] = [None] * 4
    if any(asked):
        free = iter(torch.empty(sum(asked), programs, width, dtype=torch.float32, device=device))
        parts = [next(free) if wanted else None for wanted in asked]
    constants = _constants(given, rule, width)
    kernels.backward[(programs,)](
        None if d_stream is None else d_stream.contiguous(), None if d_y is None else d_y.contiguous(), stream, f_rows,
        0 if f_rows is None else f_rows.stride(0), *given, stats, dx, df, d_out_scale, d_in_scale, *parts,
        rows, rule.skip, rule.branch, rule.dropout,
        OUT=KINDS[rule.out_norm], IN=KINDS[rule.in_norm], KEPT=rule.num_statistics, **constants, **layout,
    )  # fmt: skip
    if not any(asked):
        return Grads(dx, df, None, None, None, None, None, d_out_scale, d_in_scale)
    d_out_weight, d_out_bias = alike(given.out_weight, needs.out_weight), alike(given.out_bias, needs.out_bias)
    d_in_weight, d_in_bias = alike(given.in_weight, needs.in_weight), alike(given.in_bias, needs.in_bias)
    d_branch = torch.empty(width, dtype=torch.float32, device=device) if needs.branch else None
    kernels.finish[(-(-width // SPAN), 2)](
        *parts, given.out_weight, given.out_bias, given.branch,
        d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch, programs, rule.branch,
        CHUNK=CHUNK, SPAN=SPAN, num_warps=8, **constants,
    )  # fmt: skip
    if d_branch is not None and given.branch is not None:
        d_branch = d_branch if constants["PER_CHANNEL"] else d_branch.sum()
        d_branch = d_branch.reshape(given.branch.shape).to(given.branch.dtype)
    return Grads(dx, df, d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch, d_out_scale, d_in_scale)
