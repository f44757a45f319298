"""The boundary on a GPU: one pass forward and one backward, each row in registers or a cache from read to write.

Forward reads f and x and writes the stream and y; backward reads their gradients, the stream and f, and writes two
gradients. Gradients of gains are summed by each program over its rows, then over programs by a small kernel: no
atomics, the same bits every time. Rows too wide for a program to keep its sums are read once more for them.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normplace.ops.launch import Launch, current_stream
from normplace.ops.norm_add_norm import triton_backward, triton_forward, triton_tiles
from normplace.ops.norm_add_norm.reference import Given, Grads, Needs, Rule
from normplace.ops.norm_add_norm.triton_tiles import Layout, layout_of

# Launched with options and numbers that their Python signatures do not show.
forward_kernels: Any = triton_forward
backward_kernels: Any = triton_backward
KINDS = {"none": 0, "rms": 1, "layer": 2}
# Programs' parts added at a time, and channels of each program that adds them.
CHUNK, SPAN = 256, 16
# Compiled forms that are remembered.
FORMS = 1024


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
def _forward_launch(form: Form, kept: bool, few: bool, x_stride: int, f_stride: int) -> tuple[Layout, Launch]:
    del kept, x_stride, f_stride  # only tell launches apart
    rule, width = form.rule, form.width
    table = triton_tiles.forward(width, few, centred="layer" in (rule.out_norm, rule.in_norm))
    layout = layout_of(table, width, form.device, _bytes(rule.x_dtype, rule.f_dtype), _bytes(*form.given[:5]))
    constants = form.constants | layout.constants
    if layout.cut:
        kernel = forward_kernels.forward_in_pieces
        del constants["STAGES"]
    else:
        kernel = forward_kernels.forward
    return layout, Launch(kernel, constants, num_warps=layout.warps)


def forward(x: Tensor, f: Tensor, given: Given, rule: Rule, kept: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """As the reference; without statistics unless they are to be kept, which a backward pass needs."""
    width, device = x.shape[-1], x.device
    (x_rows, x_stride), (f_rows, f_stride) = _rows(x, width), _rows(f, width)
    rows = x.numel() // width
    stream = torch.empty_like(x, dtype=rule.stream_dtype, memory_format=torch.contiguous_format)
    y = torch.empty_like(stream, dtype=rule.f_dtype) if rule.in_norm != "none" else f.new_empty(0)
    stats = torch.empty(rows, rule.num_statistics, dtype=torch.float32, device=device) if kept else None
    form = Form.of(given, rule, width, device)
    layout, launch = _forward_launch(form, kept, rows <= triton_tiles.FEW, x_stride, f_stride)
    launch(
        (layout.programs(rows), 1, 1), current_stream(device), (x_rows, f_rows, *given, stream, y, stats),
        x_stride, f_stride, rows, rule.out_eps, rule.in_eps, _factor(rule.skip), _factor(rule.branch), rule.dropout,
    )  # fmt: skip
    return stream, y, stats


class Columns(NamedTuple):
    """The launch that takes the sums of rows too wide for the first launch to take them."""

    layout: Layout
    """Of the rows of one span."""
    spans: int
    """Programs side by side, each with some columns."""
    launch: Launch


class Backward(NamedTuple):
    """The launches of a backward pass, and what they leave to each other."""

    num_parts: int
    """Sums of the gains' and shifts' gradients, over the rows of each program."""
    layout: Layout
    rows: Launch
    columns: Columns | None
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
    # Gradients of the rows' scales read gains and shifts once more.
    channels = form.given[:5] * 2 if needs.out_scale or needs.in_scale else (out_weight, in_weight, branch)
    by_stream, by_y, by_f = read
    stream_bytes, f_bytes = rule.stream_dtype.itemsize, rule.f_dtype.itemsize
    row_bytes = by_stream * stream_bytes + by_y * (f_bytes + stream_bytes) + by_f * f_bytes
    table = triton_tiles.backward(form.width, shifts=asked["OUT_SHIFT"] or asked["IN_SHIFT"])
    layout = layout_of(table, form.width, form.device, row_bytes, _bytes(*channels))
    columns, taken = None, parts
    if form.width > triton_tiles.SUMMED:
        columns = _columns(form, row_bytes, parts) if kept else None
        taken = dict.fromkeys(parts, -1)
    constants = {name: form.constants[name] for name in ("D", "OFFSET", "PER_CHANNEL")}
    return Backward(
        len(kept),
        layout,
        Launch(backward_kernels.backward, form.constants | layout.constants | taken, num_warps=layout.warps),
        columns,
        Launch(backward_kernels.finish, constants | {"CHUNK": CHUNK, "SPAN": SPAN} | parts, num_warps=8),
    )


def _columns(form: Form, row_bytes: int, parts: dict[str, int]) -> Columns:
    in_weight = form.given[2]
    layout = layout_of({form.width: triton_tiles.COLUMNS}, form.width, form.device, row_bytes, _bytes(in_weight))
    constants = {name: form.constants[name] for name in ("D", "OUT", "IN", "OFFSET", "KEPT")}
    launch = Launch(backward_kernels.columns, constants | layout.constants | parts, num_warps=layout.warps)
    spans = -(-form.width // layout.constants["BLOCK"])
    return Columns(layout._replace(most=max(1, layout.most // spans)), spans, launch)


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
    columns, kept = launches.columns, launches.num_parts
    adding = programs if columns is None else columns.layout.programs(rows)
    parts = torch.empty(kept, adding, width, dtype=torch.float32, device=device) if kept else None
    pulls = None
    if columns is not None and d_y is not None:
        pulls = torch.empty(rows, 2, dtype=torch.float32, device=device)
    launches.rows(
        (programs, 1, 1), queue,
        (d_stream, d_y, stream, f_rows, *given, stats, dx, df, d_out_scale, d_in_scale,
         parts if columns is None else None, pulls),
        f_stride, rows, _factor(rule.skip), _factor(rule.branch), rule.dropout,
    )  # fmt: skip
    if parts is None:
        return Grads(dx, df, None, None, None, None, None, d_out_scale, d_in_scale)
    if columns is not None:
        columns.launch(
            (columns.spans, adding, 1), queue,
            (d_stream, d_y, stream, f_rows, given.in_weight, given.out_scale, given.in_scale, given.seed, stats,
             parts, pulls),
            f_stride, rows, rule.dropout,
        )  # fmt: skip
    d_out_weight, d_out_bias = _alike(given.out_weight, needs.out_weight), _alike(given.out_bias, needs.out_bias)
    d_in_weight, d_in_bias = _alike(given.in_weight, needs.in_weight), _alike(given.in_bias, needs.in_bias)
    d_branch = torch.empty(width, dtype=torch.float32, device=device) if needs.branch else None
    launches.finish(
        (-(-width // SPAN), 2, 1), queue,
        (parts, given.out_weight, given.out_bias, given.branch,
         d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch),
        adding, _factor(rule.branch),
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
