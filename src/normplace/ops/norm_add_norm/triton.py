"""The boundary on a GPU: one pass forward and one backward, with each row in registers or cache from read to write.

The forward pass reads f and x and writes the new stream and y. The backward pass reads their gradients, the stream and
f, and writes two gradients. Each program sums the gradients of gains and biases over its rows, and a small kernel adds
the sums of the programs: no atomics, bit-identical results. For rows too wide for a program to keep its sums, a second
kernel reads the rows again.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from normplace.ops.launch import KernelCall, Launch, cached_plan, contiguous_rows, current_stream, empty_grad
from normplace.ops.norm_add_norm import layouts, triton_backward, triton_forward
from normplace.ops.norm_add_norm.layouts import BoundaryLayout, layout_for
from normplace.ops.norm_add_norm.reference import BoundaryGradMask, BoundaryGrads, BoundarySpec, OptionalTensors

# Typed as Any because launches pass options and numbers that the Python signatures do not show.
forward_kernels: Any = triton_forward
backward_kernels: Any = triton_backward
NORM_KINDS = {"none": 0, "rms": 1, "layer": 2}
ROUNDING_KINDS = {"once": 0, "result": 1, "gain": 2, "rows": 3}
# In place of the stride of a missing branch, since rows of an expanded branch have stride 0.
NO_BRANCH = -1


class BoundaryKey(NamedTuple):
    """What decides which compiled kernels a boundary needs, apart from strides and the gradients of a pass.

    Each pass looks up what depends on its signature: this key, the number of rows, strides and gradients.
    """

    spec: BoundarySpec
    dtypes: tuple[torch.dtype | None, ...]
    """In the order of :class:`OptionalTensors`."""
    per_channel: bool
    """Whether ``branch_scale`` has one number for each channel."""
    width: int
    device: torch.device

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that both passes are compiled with."""
        spec = self.spec
        return {
            "D": self.width, "OUT": NORM_KINDS[spec.out_norm], "IN": NORM_KINDS[spec.next_norm],
            "OFFSET": spec.unit_offset, "PER_CHANNEL": self.per_channel, "KEPT": spec.num_statistics,
        }  # fmt: skip


def _dtypes(tensors: OptionalTensors) -> tuple[torch.dtype | None, ...]:
    return tuple([None if tensor is None else tensor.dtype for tensor in tensors])


def _is_per_channel(branch_scale: Tensor | None) -> bool:
    return branch_scale is not None and branch_scale.numel() > 1


def _factor(value: float) -> float | None:
    """None for one, which saves the kernels a multiplication."""
    return None if value == 1 else value


def _bytes(*dtypes: torch.dtype | None) -> int:
    return sum(dtype.itemsize for dtype in dtypes if dtype is not None)


def may_contract(*roundings: str) -> bool:
    """Whether the compiler may compute a product and a sum as one operation, which skips the rounding between them."""
    return all(rounding == "once" for rounding in roundings)


@cached_plan
def _forward_plan(
    key: BoundaryKey, training: bool, few_rows: bool, x_stride: int, f_stride: int
) -> tuple[BoundaryLayout, Launch]:
    del training, x_stride, f_stride  # part of the cache key: each needs its own launch, a missing branch too
    spec, width = key.spec, key.width
    table = layouts.forward_table(width, few_rows, "layer" in (spec.out_norm, spec.next_norm))
    layout = layout_for(table, width, key.device, _bytes(spec.x_dtype, spec.f_dtype), _bytes(*key.dtypes[:5]))
    rounding = {
        "OUT_ROUNDING": ROUNDING_KINDS[spec.out_rounding], "IN_ROUNDING": ROUNDING_KINDS[spec.next_rounding]
    }  # fmt: skip
    constants = key.constants | rounding | layout.constants
    if layout.in_blocks:
        kernel = forward_kernels.forward_in_pieces
        del constants["STAGES"]
    else:
        kernel = forward_kernels.forward
    contracts = may_contract(spec.out_rounding, spec.next_rounding)
    return layout, Launch(kernel, constants, num_warps=layout.warps, enable_fp_fusion=contracts)


@cached_plan
def _forward_call(
    spec: BoundarySpec,
    dtypes: tuple[torch.dtype | None, ...],
    per_channel: bool,
    shape: torch.Size,
    device: torch.device,
    training: bool,
    x_stride: int,
    f_stride: int,
) -> KernelCall:
    rows, key = shape[:-1].numel(), BoundaryKey(spec, dtypes, per_channel, shape[-1], device)
    layout, launch = _forward_plan(key, training, rows <= layouts.FEW_ROWS, x_stride, f_stride)
    numbers = (
        x_stride, f_stride, rows, spec.out_eps, spec.next_eps, _factor(spec.skip_factor), _factor(spec.branch_factor),
        spec.dropout,
    )  # fmt: skip
    return KernelCall(launch, (layout.programs(rows), 1, 1), numbers)


def forward(
    x: Tensor, f: Tensor | None, tensors: OptionalTensors, spec: BoundarySpec, training: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See :func:`reference.forward`; statistics are None unless ``training``, and the stream is x if ``f`` is None."""
    shape, device = x.shape, x.device
    width = shape[-1]
    x_rows, x_stride = contiguous_rows(x, width)
    stream, f_rows, f_stride = None, None, NO_BRANCH
    if f is not None:
        f_rows, f_stride = contiguous_rows(f, width)
        stream = torch.empty_like(x, dtype=spec.stream_dtype, memory_format=torch.contiguous_format)
    y = torch.empty_like(
        x if spec.has_next_norm else x.new_empty(0), dtype=spec.y_dtype, memory_format=torch.contiguous_format
    )
    stats = None
    if training:
        stats = torch.empty(x.numel() // width, spec.num_statistics, dtype=torch.float32, device=device)
    launch, grid, numbers = _forward_call(
        spec, _dtypes(tensors), _is_per_channel(tensors[4]), shape, device, training, x_stride, f_stride
    )
    launch(grid, current_stream(device), (x_rows, f_rows, *tensors, stream, y, stats), *numbers)
    return x if stream is None else stream, y, stats


class ColumnSumsPlan(NamedTuple):
    """The launch that sums over rows too wide for the first launch to do so."""

    layout: BoundaryLayout
    """Of the rows of one span."""
    spans: int
    """Programs along a row, each with some columns."""
    launch: Launch


class BackwardPlan(NamedTuple):
    """The launches of a backward pass."""

    num_sums: int
    """Sums over rows that each program keeps: gradients of gains and biases."""
    layout: BoundaryLayout
    rows: Launch
    columns: ColumnSumsPlan | None
    finish: Launch


@cached_plan
def _backward_plan(
    key: BoundaryKey, needs: BoundaryGradMask, reads: tuple[bool, bool, bool], f_stride: int
) -> BackwardPlan:
    del f_stride  # part of the cache key: each needs its own launch
    spec = key.spec
    out_weight, out_bias, in_weight, _, branch = key.dtypes[:5]
    wanted = {
        "OUT_GAIN": needs.out_weight or needs.branch_scale,
        "OUT_SHIFT": needs.out_bias or (needs.branch_scale and out_bias is not None),
        "IN_GAIN": needs.in_weight,
        "IN_SHIFT": needs.in_bias,
    }
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    positions = {name: names.index(name) if is_wanted else -1 for name, is_wanted in wanted.items()}
    # Gradients of the rows' scales read gains and biases a second time.
    channels = key.dtypes[:5] * 2 if needs.out_scale or needs.in_scale else (out_weight, in_weight, branch)
    reads_d_stream, reads_d_y, reads_f = reads
    stream_bytes, f_bytes, y_bytes = (dtype.itemsize for dtype in (spec.stream_dtype, spec.f_dtype, spec.y_dtype))
    row_bytes = reads_d_stream * stream_bytes + reads_d_y * (y_bytes + stream_bytes) + reads_f * f_bytes
    table = layouts.backward_table(key.width, wanted["OUT_SHIFT"] or wanted["IN_SHIFT"])
    layout = layout_for(table, key.width, key.device, row_bytes, _bytes(*channels))
    columns, own_positions = None, positions
    if key.width > layouts.MAX_SUMMED_WIDTH:
        columns = _column_sums_plan(key, row_bytes, positions) if names else None
        own_positions = dict.fromkeys(positions, -1)
    finish = {name: key.constants[name] for name in ("D", "OFFSET", "PER_CHANNEL")}
    finish |= {"CHUNK": layouts.SUM_CHUNK, "SPAN": layouts.SUM_SPAN} | positions
    return BackwardPlan(
        len(names),
        layout,
        Launch(backward_kernels.backward, key.constants | layout.constants | own_positions, num_warps=layout.warps),
        columns,
        Launch(backward_kernels.finish, finish, num_warps=8),
    )


def _column_sums_plan(key: BoundaryKey, row_bytes: int, positions: dict[str, int]) -> ColumnSumsPlan:
    in_weight = key.dtypes[2]
    layout = layout_for({key.width: layouts.COLUMN_SUMS}, key.width, key.device, row_bytes, _bytes(in_weight))
    constants = {name: key.constants[name] for name in ("D", "OUT", "IN", "OFFSET", "KEPT")}
    launch = Launch(backward_kernels.columns, constants | layout.constants | positions, num_warps=layout.warps)
    spans = -(-key.width // layout.constants["BLOCK"])
    return ColumnSumsPlan(layout._replace(max_programs=max(1, layout.max_programs // spans)), spans, launch)


class BackwardCalls(NamedTuple):
    """The launches of a backward pass over rows of one shape."""

    num_partial: int
    """Programs that sum over rows."""
    num_sums: int
    """See :class:`BackwardPlan`."""
    rows: KernelCall
    columns: KernelCall | None
    finish: KernelCall


@cached_plan
def _backward_calls(
    spec: BoundarySpec,
    dtypes: tuple[torch.dtype | None, ...],
    per_channel: bool,
    shape: torch.Size,
    device: torch.device,
    needs: BoundaryGradMask,
    reads: tuple[bool, bool, bool],
    f_stride: int,
) -> BackwardCalls:
    rows, width = shape[:-1].numel(), shape[-1]
    plan = _backward_plan(BoundaryKey(spec, dtypes, per_channel, width, device), needs, reads, f_stride)
    programs, branch_factor = plan.layout.programs(rows), _factor(spec.branch_factor)
    num_partial, columns = programs, None
    if plan.columns is not None:
        num_partial = plan.columns.layout.programs(rows)
        grid = (plan.columns.spans, num_partial, 1)
        columns = KernelCall(plan.columns.launch, grid, (f_stride, rows, spec.dropout))
    numbers = (f_stride, rows, _factor(spec.skip_factor), branch_factor, spec.dropout)
    return BackwardCalls(
        num_partial,
        plan.num_sums,
        KernelCall(plan.rows, (programs, 1, 1), numbers),
        columns,
        KernelCall(plan.finish, (-(-width // layouts.SUM_SPAN), 2, 1), (num_partial, branch_factor)),
    )


def backward(
    d_stream: Tensor | None,
    d_y: Tensor | None,
    stream: Tensor | None,
    f: Tensor | None,
    stats: Tensor,
    tensors: OptionalTensors,
    spec: BoundarySpec,
    needs: BoundaryGradMask,
) -> BoundaryGrads:
    """See :func:`reference.backward`."""
    like = d_stream if d_stream is not None else d_y
    assert like is not None
    shape, device = like.shape, like.device
    width = shape[-1]
    f_rows, f_stride = (None, 0) if f is None else contiguous_rows(f, width)
    d_stream = None if d_stream is None else d_stream.contiguous()
    d_y = None if d_y is None else d_y.contiguous()
    out_weight, out_bias, in_weight, in_bias, branch_scale, out_scale, in_scale, seed = tensors
    per_channel = _is_per_channel(branch_scale)
    num_partial, num_sums, rows_call, columns_call, finish_call = _backward_calls(
        spec, _dtypes(tensors), per_channel, shape, device, needs,
        (d_stream is not None, d_y is not None, f is not None), f_stride,
    )  # fmt: skip
    queue = current_stream(device)
    dx, df = empty_grad(like, needs.x, spec.x_dtype), empty_grad(like, needs.f, spec.f_dtype)
    d_out_scale, d_in_scale = empty_grad(out_scale, needs.out_scale), empty_grad(in_scale, needs.in_scale)
    partial = pulls = None
    if num_sums:
        partial = torch.empty(num_sums, num_partial, width, dtype=torch.float32, device=device)
    if columns_call is not None and d_y is not None:
        pulls = torch.empty(like.numel() // width, 2, dtype=torch.float32, device=device)
    rows_call(
        queue, d_stream, d_y, stream, f_rows, *tensors, stats, dx, df, d_out_scale, d_in_scale,
        partial if columns_call is None else None, pulls,
    )  # fmt: skip
    if partial is None:
        return BoundaryGrads(dx, df, out_scale=d_out_scale, in_scale=d_in_scale)
    if columns_call is not None:
        columns_call(
            queue, d_stream, d_y, stream, f_rows, in_weight, out_scale, in_scale, seed, stats, partial, pulls
        )  # fmt: skip
    d_out_weight, d_out_bias = empty_grad(out_weight, needs.out_weight), empty_grad(out_bias, needs.out_bias)
    d_in_weight, d_in_bias = empty_grad(in_weight, needs.in_weight), empty_grad(in_bias, needs.in_bias)
    d_branch = torch.empty(width, dtype=torch.float32, device=device) if needs.branch_scale else None
    finish_call(
        queue, partial, out_weight, out_bias, branch_scale, d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch
    )
    if d_branch is not None and branch_scale is not None:
        d_branch = d_branch if per_channel else d_branch.sum()
        d_branch = d_branch.reshape(branch_scale.shape).to(branch_scale.dtype)
    return BoundaryGrads(dx, df, d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch, d_out_scale, d_in_scale)
