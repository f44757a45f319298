"""Gate, add, norm and modulation on a GPU: one pass forward, and one backward with a small kernel for the factors.

The forward pass reads x and f and writes the new stream and y. The backward pass reads their gradients, the stream and
f, and writes two gradients. The gradients of a sample's gate, scale and shift are sums over its tokens. They use no
atomics, so results are bit-identical between runs.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from normplace.ops.gate_add_norm import triton_kernels
from normplace.ops.gate_add_norm.reference import GateGradMask, GateGrads, GateSpec, GateTensors
from normplace.ops.launch import Launch, cached_plan, contiguous_rows, current_stream, empty_grad
from normplace.ops.norm_add_norm import layouts
from normplace.ops.norm_add_norm.layouts import BoundaryLayout, layout_for
from normplace.ops.norm_add_norm.triton import NORM_KINDS, ROUNDING_KINDS, may_contract

# Typed as Any because launches pass options and numbers that the Python signatures do not show.
kernels: Any = triton_kernels
# Sums of programs that ``finish`` adds at a time, and its columns.
SUM_CHUNK, SUM_SPAN = 16, 128


class GateKey(NamedTuple):
    """What decides which compiled kernels a call needs, apart from the gradients of a pass."""

    spec: GateSpec
    dtypes: tuple[torch.dtype | None, ...]
    """In the order of :class:`GateTensors`."""
    strides: tuple[int, ...]
    """Between the rows of the stream and the branch in the forward pass, and of the factors; -1 for a missing one."""
    width: int
    device: torch.device

    @classmethod
    def of(cls, like: Tensor, tensors: GateTensors, spec: GateSpec, *strides: int) -> GateKey:
        """The key of a call with rows like ``like``."""
        dtypes = tuple([None if tensor is None else tensor.dtype for tensor in tensors])
        factors = [-1 if factor is None else factor.stride(0) for factor in tensors[:3]]
        return cls(spec, dtypes, (*strides, *factors), like.shape[-1], like.device)

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that both passes are compiled with."""
        return {"D": self.width, "NORM": NORM_KINDS[self.spec.norm], "KEPT": self.spec.num_statistics}

    @property
    def channel_bytes(self) -> int:
        """Bytes of factors, gain and bias for each feature."""
        return sum(dtype.itemsize for dtype in self.dtypes if dtype is not None)


@cached_plan
def _forward_plan(key: GateKey, training: bool, few_rows: bool) -> tuple[BoundaryLayout, Launch]:
    del training  # part of the cache key: it needs its own launch
    table = layouts.forward_table(key.width, few_rows, subtracts_mean=True)  # whole rows
    row_bytes = key.spec.x_dtype.itemsize + key.spec.f_dtype.itemsize
    layout = layout_for(table, key.width, key.device, row_bytes, key.channel_bytes)
    constants = key.constants | {"ROUNDING": ROUNDING_KINDS[key.spec.rounding]} | layout.constants
    del constants["STAGES"]
    contracts = may_contract(key.spec.rounding)
    return layout, Launch(kernels.forward, constants, num_warps=layout.warps, enable_fp_fusion=contracts)


def forward(
    x: Tensor, f: Tensor | None, tensors: GateTensors, spec: GateSpec, training: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See :func:`reference.forward`; statistics are None unless ``training``."""
    width, device = x.shape[-1], x.device
    (x_rows, x_stride), (f_rows, f_stride) = contiguous_rows(x, width), (None, -1)
    if f is not None:
        f_rows, f_stride = contiguous_rows(f, width)
    rows = x.numel() // width
    stream = empty_grad(x, f is not None, spec.stream_dtype)
    y = empty_grad(x, spec.norm != "none", spec.y_dtype)
    stats = torch.empty(rows, spec.num_statistics, dtype=torch.float32, device=device) if training else None
    key = GateKey.of(x, tensors, spec, x_stride, f_stride)
    layout, launch = _forward_plan(key, training, rows <= layouts.FEW_ROWS)
    launch(
        (-(-rows // layout.tile_rows), 1, 1), current_stream(device),
        (x_rows, f_rows, *tensors, stream, y, stats), *key.strides, rows, rows // tensors.samples, spec.eps,
    )  # fmt: skip
    nothing = [x.new_empty(0, dtype=dtype) for dtype in (spec.stream_dtype, spec.y_dtype)]
    return nothing[0] if stream is None else stream, nothing[1] if y is None else y, stats


class BackwardPlan(NamedTuple):
    """The launches of a backward pass."""

    num_sums: int
    """Sums over rows that each program keeps."""
    layout: BoundaryLayout
    rows: Launch
    finish: Launch

    def parts(self, samples: int, tokens: int) -> int:
        """Programs of each sample."""
        tiles = -(-tokens // self.layout.tile_rows)
        return max(1, min(tiles, -(-self.layout.max_programs // samples)))


@cached_plan
def _backward_plan(key: GateKey, needs: GateGradMask, reads: tuple[bool, bool, bool]) -> BackwardPlan:
    wanted = {
        "GATE": needs.gate,
        "GAIN": needs.scale or needs.weight,
        "SHIFT": needs.shift or needs.bias or (needs.scale and key.dtypes[4] is not None),
    }
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    positions = {name: names.index(name) if is_wanted else -1 for name, is_wanted in wanted.items()}
    spec, (reads_d_stream, reads_d_y, reads_f) = key.spec, reads
    stream_bytes = spec.stream_dtype.itemsize
    row_bytes = reads_d_stream * stream_bytes + reads_d_y * (spec.y_dtype.itemsize + stream_bytes)
    table = layouts.backward_table(key.width, has_bias_grads=len(names) > 1)
    layout = layout_for(
        table, key.width, key.device, row_bytes + reads_f * spec.f_dtype.itemsize, key.channel_bytes
    )  # fmt: skip
    rows = Launch(kernels.backward, key.constants | layout.constants | positions, num_warps=layout.warps)
    finish = {"D": key.width, "CHUNK": SUM_CHUNK, "SPAN": SUM_SPAN} | positions
    return BackwardPlan(len(names), layout, rows, Launch(kernels.finish, finish, num_warps=4))


def backward(
    d_stream: Tensor | None,
    d_y: Tensor | None,
    stream: Tensor | None,
    f: Tensor | None,
    stats: Tensor,
    tensors: GateTensors,
    spec: GateSpec,
    needs: GateGradMask,
) -> GateGrads:
    """See :func:`reference.backward`."""
    like = d_stream if d_stream is not None else d_y
    assert like is not None
    width, device = like.shape[-1], like.device
    f_rows, f_stride = (None, -1) if f is None else contiguous_rows(f, width)
    d_stream, d_y, stream = (None if rows is None else rows.contiguous() for rows in (d_stream, d_y, stream))
    samples = tensors.samples
    tokens = like.numel() // width // samples
    key = GateKey.of(like, tensors, spec, f_stride)
    plan = _backward_plan(key, needs, (d_stream is not None, d_y is not None, f is not None))
    parts, queue = plan.parts(samples, tokens), current_stream(device)
    dx, df = empty_grad(like, needs.x, spec.x_dtype), empty_grad(like, needs.f, spec.f_dtype)
    sums = None
    if plan.num_sums:
        sums = torch.empty(plan.num_sums, samples * parts, width, dtype=torch.float32, device=device)
    gate_stride, scale_stride = key.strides[1:3]
    plan.rows(
        (samples * parts, 1, 1), queue,
        (d_stream, d_y, stream, f_rows, tensors.gate, tensors.scale, tensors.weight, stats, dx, df, sums),
        f_stride, gate_stride, scale_stride, tokens, parts,
    )  # fmt: skip
    if sums is None:
        return GateGrads(dx, df)
    d_gate, d_scale, d_shift = (
        empty_grad(factor, needed) for factor, needed in zip(tensors[:3], needs[2:5], strict=True)
    )
    by_sample = torch.empty(samples, width, dtype=torch.float32, device=device)
    gain_sums, shift_sums = empty_grad(by_sample, needs.weight), empty_grad(by_sample, needs.bias)
    plan.finish(
        (samples * -(-width // SUM_SPAN), 1, 1), queue,
        (sums, tensors.weight, tensors.bias, d_gate, d_scale, d_shift, gain_sums, shift_sums), samples, parts,
    )  # fmt: skip
    d_weight, d_bias = (
        None if total is None or like is None else _over_samples(total, tensors.scale).to(like.dtype)
        for total, like in ((gain_sums, tensors.weight), (shift_sums, tensors.bias))
    )
    return GateGrads(dx, df, d_gate, d_scale, d_shift, d_weight, d_bias)


def _over_samples(total: Tensor, scale: Tensor | None) -> Tensor:
    """The gradient of a gain or bias, from the sums of each sample."""
    return total.sum(0) if scale is None else (total * (1 + scale.float())).sum(0)
