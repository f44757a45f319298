"""The boundary on a GPU: one pass forward and one backward, each row in registers or a cache from read to write.

Forward reads f and x and writes the stream and y; backward reads their gradients, the stream and f, and writes two
gradients. Gradients of gains are summed by each program over its rows, then over programs by a small kernel: no
atomics, the same bits every time.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from normplace.ops.launch import Launch, current_stream
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
    4096: Tile(rows=1, warps=4),
    8192: Tile(rows=1, warps=4),
    16384: Tile(rows=1, warps=32),
}
# So few rows that all are under way at once take as long as one of them, which more warps make shorter: 1024 and 4096
# were tried on an H200, the others follow them.
FEW = 1024
FORWARD_OF_FEW = FORWARD | {
    1024: Tile(rows=1, warps=4),
    2048: Tile(rows=1, warps=8),
    4096: Tile(rows=1, warps=16),
    8192: Tile(rows=1, warps=32),
}
# Rows of several whole pieces, which are read again from a cache: faster where no mean is taken out, which would read
# them once more.
FORWARD_IN_PIECES = {
    4096: Tile(rows=1, warps=4),
    8192: Tile(rows=1, warps=8),
    16384: Tile(rows=1, warps=8),
}
PIECE = 2048
BACKWARD = {
    256: Tile(rows=8, warps=4, per_sm=4, stages=2),
    512: Tile(rows=4, warps=4, per_sm=4, stages=2),
    1024: Tile(rows=2, warps=4, per_sm=2, stages=3),
    2048: Tile(rows=1, warps=8, per_sm=2, stages=3),
    4096: Tile(rows=1, warps=16, per_sm=1, stages=5),
    8192: Tile(rows=1, warps=16, per_sm=1, stages=3),
    16384: Tile(rows=1, warps=32, per_sm=1),
}
# With gradients of shifts a program keeps twice as many sums.
BACKWARD_SHIFTS = {
    256: Tile(rows=4, warps=4, per_sm=5, stages=2),
    512: Tile(rows=2, warps=4, per_sm=5, stages=2),
    1024: Tile(rows=2, warps=4, per_sm=3, stages=3),
    2048: Tile(rows=1, warps=4, per_sm=2, stages=4),
    4096: Tile(rows=1, warps=8, per_sm=1, stages=4),
    8192: Tile(rows=1, warps=8, per_sm=1, stages=3),
    16384: Tile(rows=1, warps=32, per_sm=1),
}
# Programs' parts added at a time, and channels of each program that adds them.
CHUNK, SPAN = 256, 16
# Compiled forms that are remembered.
FORMS = 1024
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
    constants: dict[str, int]
    warps: int

    def programs(self, rows: int) -> int:
        """How many programs share so many rows."""
        tiles = -(-rows // self.tall)
        return min(tiles, self.most) if self.most else tiles


def _layout(table: dict[int, Tile], width: int, device: torch.device, row_bytes: int, channel_bytes: int) -> Layout:
    """Of a kernel that reads so many bytes of each element of a row, and of each channel."""
    block = 1 << (width - 1).bit_length()
    narrowest = min(table)
    tile = table[max(block, narrowest)]
    tall = tile.rows * max(1, narrowest // block)
    multiprocessors, shared = _machine(device)
    fits = (tile.stages - 1) * block * (tall * row_bytes + channel_bytes) <= shared
    constants = {"ROWS": tall, "BLOCK": block, "STAGES": tile.stages if fits else 1}
    return Layout(tall, tile.per_sm * multiprocessors, constants, tile.warps)


def _rows(tensor: Tensor, width: int) -> tuple[Tensor, int]:
    """The tensor with the elements of a row side by side, copied where they are not, and how far apart rows begin."""
    if tensor.is_contiguous():
        return tensor, width
    flat = tensor.reshape(-1, width)
    flat = flat if width == 1 or flat.stride(1) == 1 else flat.contiguous()
    return flat, flat.stride(0)


class Form(NamedTuple):
    """What decides which compiled form of the kernels is meant, apart from what a pass needs and reads by strides."""

    rule: Rule
    given: tuple[torch.dtype | None, ...]
    """Dtypes, in the order of :class:`Given`."""
    per_channel: bool
    width: int
    device: torch.device

    @classmethod
    def of(cls, given: Given, rule: Rule, width: int, device: torch.device) -> Form:
        """Of the tensors given with a boundary."""
        dtypes = tuple([None if tensor is None else tensor.dtype for tensor in given])
        return cls(rule, dtypes, given.branch is not None and given.branch.numel() > 1, width, device)

    @property
    def constants(self) -> dict[str, Any]:
        """What both passes are compiled for."""
        rule = self.rule
        return {
            "D": self.width, "OUT": KINDS[rule.out_norm], "IN": KINDS[rule.in_norm], "OFFSET": rule.unit_offset,
            "PER_CHANNEL": self.per_channel, "KEPT": rule.num_statistics,
        }  # fmt: skip


def _factor(value: float) -> float | None:
    """None spares the kernels a multiplication by one."""
    return None if value == 1 else value


def _bytes(*dtypes: torch.dtype | None) -> int:
    return sum(dtype.itemsize for dtype in dtypes if dtype is not None)


@functools.lru_cache(maxsize=FORMS)
def _forward_launch(form: Form, few: bool, x_stride: int, f_stride: int) -> tuple[Layout, Launch]:
    del x_stride, f_stride  # only tells launches apart
    rule = form.rule
    row_bytes, channel_bytes = _bytes(rule.x_dtype, rule.f_dtype), _bytes(*form.given[:5])
    centred = "layer" in (rule.out_norm, rule.in_norm)
    if not few and not centred and form.width > PIECE and form.width % PIECE == 0:
        layout = _layout(FORWARD_IN_PIECES, form.width, form.device, row_bytes, channel_bytes)
        constants = form.constants | {"ROWS": layout.tall, "BLOCK": PIECE}
        return layout, Launch(kernels.forward_in_pieces, constants, num_warps=layout.warps)
    table = FORWARD_OF_FEW if few else FORWARD
    layout = _layout(table, form.width, form.device, row_bytes, channel_bytes)
    return layout, Launch(kernels.forward, form.constants | layout.constants, num_warps=layout.warps)


def forward(x: Tensor, f: Tensor, given: Given, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """As the reference."""
    width, device = x.shape[-1], x.device
    (x_rows, x_stride), (f_rows, f_stride) = _rows(x, width), _rows(f, width)
    rows = x.numel() // width
    stream = torch.empty_like(x, dtype=rule.stream_dtype, memory_format=torch.contiguous_format)
    y = torch.empty_like(stream, dtype=rule.f_dtype) if rule.in_norm != "none" else f.new_empty(0)
    stats = torch.empty(rows, rule.num_statistics, dtype=torch.float32, device=device)
    layout, launch = _forward_launch(Form.of(given, rule, width, device), rows <= FEW, x_stride, f_stride)
    launch(
        (layout.programs(rows), 1, 1), current_stream(device), (x_rows, f_rows, *given, stream, y, stats),
        x_stride, f_stride, rows, rule.out_eps, rule.in_eps, _factor(rule.skip), _factor(rule.branch), rule.dropout,
    )  # fmt: skip
    return stream, y, stats


class Backward(NamedTuple):
    """The launches of a backward pass, and what the first leaves to the second."""

    num_parts: int
    """Sums that each program keeps, over its rows, of the gains' and shifts' gradients."""
    layout: Layout
    rows: Launch
    finish: Launch


@functools.lru_cache(maxsize=FORMS)
def _backward_launches(form: Form, needs: Needs, read: tuple[bool, bool, bool], f_stride: int) -> Backward:
    del f_stride  # only tells launches apart
    rule = form.rule
    out_weight, out_bias, in_weight, _, branch = form.given[:5]
    asked = {
        "OUT_GAIN": needs.out_weight or needs.branch,
        "OUT_SHIFT": needs.out_bias or (needs.branch and out_bias is not None),
        "IN_GAIN": needs.in_weight,
        "IN_SHIFT": needs.in_bias,
    }
    kept = [name for name, wanted in asked.items() if wanted]
    parts = {name: kept.index(name) if wanted else -1 for name, wanted in asked.items()}
    table = BACKWARD_SHIFTS if asked["OUT_SHIFT"] or asked["IN_SHIFT"] else BACKWARD
    # Gradients of the rows' scales read gains and shifts once more.
    channels = form.given[:5] * 2 if needs.out_scale or needs.in_scale else (out_weight, in_weight, branch)
    by_stream, by_y, by_f = read
    stream_bytes, f_bytes = rule.stream_dtype.itemsize, rule.f_dtype.itemsize
    row_bytes = by_stream * stream_bytes + by_y * (f_bytes + stream_bytes) + by_f * f_bytes
    layout = _layout(table, form.width, form.device, row_bytes, _bytes(*channels))
    constants = {name: form.constants[name] for name in ("D", "OFFSET", "PER_CHANNEL")}
    return Backward(
        len(kept),
        layout,
        Launch(kernels.backward, form.constants | layout.constants | parts, num_warps=layout.warps),
        Launch(kernels.finish, constants | {"CHUNK": CHUNK, "SPAN": SPAN} | parts, num_warps=8),
    )


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
    width, device = like.shape[-1], like.device
    rows = like.numel() // width
    f_rows, f_stride = (None, 0) if f is None else _rows(f, width)
    d_stream = None if d_stream is None else d_stream.contiguous()
    d_y = None if d_y is None else d_y.contiguous()
    read = (d_stream is not None, d_y is not None, f is not None)
    form = Form.of(given, rule, width, device)
    launches = _backward_launches(form, needs, read, f_stride)
    programs, queue = launches.layout.programs(rows), current_stream(device)
    dx = _alike(like, needs.x, rule.x_dtype)
    df = _alike(like, needs.f, rule.f_dtype)
    d_out_scale = _alike(given.out_scale, needs.out_scale)
    d_in_scale = _alike(given.in_scale, needs.in_scale)
    kept = launches.num_parts
    parts = torch.empty(kept, programs, width, dtype=torch.float32, device=device) if kept else None
    launches.rows(
        (programs, 1, 1), queue,
        (d_stream, d_y, stream, f_rows, *given, stats, dx, df, d_out_scale, d_in_scale, parts),
        f_stride, rows, _factor(rule.skip), _factor(rule.branch), rule.dropout,
    )  # fmt: skip
    if parts is None:
        return Grads(dx, df, None, None, None, None, None, d_out_scale, d_in_scale)
    d_out_weight, d_out_bias = _alike(given.out_weight, needs.out_weight), _alike(given.out_bias, needs.out_bias)
    d_in_weight, d_in_bias = _alike(given.in_weight, needs.in_weight), _alike(given.in_bias, needs.in_bias)
    d_branch = torch.empty(width, dtype=torch.float32, device=device) if needs.branch else None
    launches.finish(
        (-(-width // SPAN), 2, 1), queue,
        (parts, given.out_weight, given.out_bias, given.branch,
         d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch),
        programs, _factor(rule.branch),
    )  # fmt: skip
    if d_branch is not None and given.branch is not None:
        d_branch = d_branch if form.per_channel else d_branch.sum()
        d_branch = d_branch.reshape(given.branch.shape).to(given.branch.dtype)
    return Grads(dx, df, d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch, d_out_scale, d_in_scale)


def _alike(tensor: Tensor | None, needed: bool, dtype: torch.dtype | None = None) -> Tensor | None:
    if not needed or tensor is None:
        return None
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def forget_launches() -> None:
    """Read the tables of tiles again."""
    _forward_launch.cache_clear()
    _backward_launches.cache_clear()
