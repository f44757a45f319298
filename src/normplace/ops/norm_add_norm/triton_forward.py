"""Triton kernels of the boundary's forward pass, launched by :mod:`normplace.ops.norm_add_norm.triton`.

They compute what :mod:`normplace.ops.norm_add_norm.reference` defines. A tile is ROWS × BLOCK elements: whole rows,
padded to a power of two and kept in registers, so that the variance of the centred row needs no second read. Wide rows
of RMSNorm are faster if they are read twice, one block at a time, because fewer registers allow more programs.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from normplace.ops.norm_add_norm.triton_norms import deviation, note, standardised
from normplace.ops.norm_add_norm.triton_steps import affine, as_narrower, merged, read, scaled


@triton.jit(do_not_specialize=["rows"])
def forward(
    x, f, out_weight, out_bias, in_weight, in_bias, branch, out_scale, in_scale, seed, stream, y, stats,
    x_stride, f_stride, rows, out_eps, in_eps, skip, branch_value, dropout,
    D: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr,
    KEPT: tl.constexpr, OUT_ROUNDING: tl.constexpr, IN_ROUNDING: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The new stream, the input of the next branch, and the statistics of the rows unless ``stats`` is None.

    Without ``f`` the stream is x, which is normalized and not written.
    """
    cols = tl.arange(0, BLOCK)
    inside = cols < D
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        there = row < rows
        mask = there[:, None] & inside[None, :]
        if f is not None:
            u = read(f, row, f_stride, cols, mask).to(tl.float32)
        v = read(x, row, x_stride, cols, mask).to(tl.float32)
        place = row.to(tl.int64)[:, None] * D + cols[None, :]
        if f is not None:
            if OUT > 0:
                u = standardised(u, inside, row, there, stats, 0, out_eps, D, OUT, KEPT, BLOCK)
            v = merged(
                u, v, row, there, cols, inside, out_weight, out_bias, branch, out_scale, seed, skip, branch_value,
                dropout, f, OFFSET, PER_CHANNEL, OUT_ROUNDING,
            )  # fmt: skip
            rounded = v.to(stream.dtype.element_ty)
            tl.store(stream + place, rounded, mask=mask, eviction_policy="evict_first")
            v = rounded.to(tl.float32)
        if IN > 0:
            v = standardised(v, inside, row, there, stats, 1, in_eps, D, IN, KEPT, BLOCK)
            if IN_ROUNDING >= 2:
                v = as_narrower(v, stream if f is not None else x, y)
            v = scaled(affine(v, in_weight, in_bias, cols, inside, OFFSET), in_scale, row, there)
            tl.store(y + place, v, mask=mask, eviction_policy="evict_first")


@triton.jit
def _inside(first, lane, D: tl.constexpr, BLOCK: tl.constexpr):
    """Mask of the lanes of a block that are columns; constant if all are."""
    return lane < BLOCK if D % BLOCK == 0 else first + lane < D


@triton.jit(do_not_specialize=["rows"])
def forward_in_pieces(
    x, f, out_weight, out_bias, in_weight, in_bias, branch, out_scale, in_scale, seed, stream, y, stats,
    x_stride, f_stride, rows, out_eps, in_eps, skip, branch_value, dropout,
    D: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr,
    KEPT: tl.constexpr, OUT_ROUNDING: tl.constexpr, IN_ROUNDING: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Like ``forward``, for norms that subtract no mean; a row is processed in blocks of BLOCK columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    lane = tl.arange(0, BLOCK)
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    if OUT > 0:
        for first in tl.range(0, D, BLOCK):
            inside = _inside(first, lane, D, BLOCK)
            mask = there[:, None] & inside[None, :]
            u = read(f, row, f_stride, first + lane, mask, "evict_last").to(tl.float32)
            squares += u * u
        out_rstd = deviation(tl.sum(squares, 1), out_eps, D)
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(0, D, BLOCK):
        cols = first + lane
        inside = _inside(first, lane, D, BLOCK)
        mask = there[:, None] & inside[None, :]
        if f is not None:
            u = read(f, row, f_stride, cols, mask, "evict_first").to(tl.float32)
        v = read(x, row, x_stride, cols, mask, "evict_first" if f is not None else "evict_last").to(tl.float32)
        if f is not None:
            if OUT > 0:
                u *= out_rstd[:, None]
            v = merged(
                u, v, row, there, cols, inside, out_weight, out_bias, branch, out_scale, seed, skip, branch_value,
                dropout, f, OFFSET, PER_CHANNEL, OUT_ROUNDING,
            )  # fmt: skip
            rounded = v.to(stream.dtype.element_ty)
            tl.store(stream + row.to(tl.int64)[:, None] * D + cols[None, :], rounded, mask=mask)
            v = rounded.to(tl.float32)
        if IN > 0:
            squares += v * v
    if IN > 0:
        in_rstd = deviation(tl.sum(squares, 1), in_eps, D)
        tl.debug_barrier()  # a thread may read what another thread wrote
        for first in tl.range(0, D, BLOCK):
            cols = first + lane
            inside = _inside(first, lane, D, BLOCK)
            mask = there[:, None] & inside[None, :]
            if f is not None:
                v = read(stream, row, D, cols, mask, "evict_first").to(tl.float32) * in_rstd[:, None]
            else:
                v = read(x, row, x_stride, cols, mask, "evict_first").to(tl.float32) * in_rstd[:, None]
            if IN_ROUNDING >= 2:
                v = as_narrower(v, stream if f is not None else x, y)
            v = scaled(affine(v, in_weight, in_bias, cols, inside, OFFSET), in_scale, row, there)
            tl.store(y + row.to(tl.int64)[:, None] * D + cols[None, :], v, mask=mask)
        note(in_rstd, stats, row, there, 1, KEPT)
    if OUT > 0:
        note(out_rstd, stats, row, there, 0, KEPT)
