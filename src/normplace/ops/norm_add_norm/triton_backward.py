"""Triton kernels of the boundary's backward pass, launched by :mod:`normplace.ops.norm_add_norm.triton`.

A program processes several tiles of whole rows and sums its part of the gradients of gains and biases; a small kernel
adds the parts of all programs. For rows so wide that these sums would fill the registers, a separate kernel reads the
rows again and computes the sums.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from normplace.ops.norm_add_norm.triton_norms import centred, leave, pulls_of, summed, through_norm
from normplace.ops.norm_add_norm.triton_steps import (
    affine,
    branched,
    channels,
    gained,
    kept,
    read,
    scaled,
    times,
    unpadded,
)


@triton.jit
def _collected(
    g, v, rstd, sum_gain, sum_shift, GAIN: tl.constexpr, SHIFT: tl.constexpr, KIND: tl.constexpr
):  # fmt: skip
    """The gradient of standardised rows times their reciprocal deviations, and the updated sums."""
    if SHIFT >= 0:
        sum_shift += g
    if KIND > 0:
        g *= rstd
    if GAIN >= 0:
        sum_gain += g * v
    return g, sum_gain, sum_shift


@triton.jit(do_not_specialize=["rows"])
def backward(
    d_stream, d_y, stream, f, out_weight, out_bias, in_weight, in_bias, branch, out_scale, in_scale, seed,
    stats, dx, df, d_out_scale, d_in_scale, parts, pulls,
    f_stride, rows, skip, branch_value, dropout,
    D: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr,
    KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OUT_GAIN: tl.constexpr, OUT_SHIFT: tl.constexpr, IN_GAIN: tl.constexpr, IN_SHIFT: tl.constexpr,
):  # fmt: skip
    """Gradients of rows, and the contribution of this program's rows to the gradients of gains and biases.

    The last constants are the positions of the sums, -1 for a sum that is not needed. The sums omit the branch's
    multiplier, so that its gradient follows from them too. For ``columns``, ``pulls`` stores the parts that the next
    norm subtracts from the gradient of each row.
    """
    # Pipelined tiles wait in shared memory and occupy registers only where they are used.
    AHEAD: tl.constexpr = STAGES > 1
    cols = tl.arange(0, BLOCK)
    inside = cols < D
    sum_out_gain = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_out_shift = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_in_gain = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_in_shift = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        there = row < rows
        mask = there[:, None] & inside[None, :]
        if d_y is not None:
            g = read(d_y, row, D, cols, mask)
            v = read(stream, row, D, cols, mask)
        if not AHEAD:  # every load is issued before the first is used
            if d_stream is not None:
                total = read(d_stream, row, D, cols, mask)
            if f is not None:
                u = read(f, row, f_stride, cols, mask)
        if d_y is not None:
            g = g.to(tl.float32)
            v, rstd = centred(v.to(tl.float32), row, there, stats, 1, IN, KEPT)
            if d_in_scale is not None:
                product = tl.sum(g * affine(v * rstd, in_weight, in_bias, cols, inside, OFFSET), 1)
                tl.store(d_in_scale + row, product, mask=there)
            g = scaled(g, in_scale, row, there)
            g, sum_in_gain, sum_in_shift = _collected(g, v, rstd, sum_in_gain, sum_in_shift, IN_GAIN, IN_SHIFT, IN)
            g = gained(g, in_weight, cols, inside, OFFSET)
            pull, mean = pulls_of(g, v, rstd, D, IN)
            if pulls is not None:
                tl.store(pulls + 2 * row[:, None], pull, mask=there[:, None])
                tl.store(pulls + 2 * row[:, None] + 1, mean, mask=there[:, None])
            through = through_norm(g, v, pull, mean, D, IN)
            if IN == 2:
                through = unpadded(through, inside, D, BLOCK)
            if AHEAD and d_stream is not None:
                total = read(d_stream, row, D, cols, mask)
            total = through if d_stream is None else total.to(tl.float32) + through
        else:
            total = (read(d_stream, row, D, cols, mask) if AHEAD else total).to(tl.float32)
        place = row.to(tl.int64)[:, None] * D + cols[None, :]
        if dx is not None:
            tl.store(dx + place, times(total, skip), mask=mask)
        if seed is not None:
            total = kept(total, seed, row, cols, dropout)
        g = scaled(total, out_scale, row, there)
        if f is not None:
            if AHEAD:
                u = read(f, row, f_stride, cols, mask)
            u, rstd = centred(u.to(tl.float32), row, there, stats, 0, OUT, KEPT)
            if d_out_scale is not None:
                hat = affine(u * rstd if OUT > 0 else u, out_weight, out_bias, cols, inside, OFFSET)
                product = tl.sum(total * branched(hat, branch, branch_value, cols, inside, PER_CHANNEL), 1)
                tl.store(d_out_scale + row, product, mask=there)
            g, sum_out_gain, sum_out_shift = _collected(
                g, u, rstd, sum_out_gain, sum_out_shift, OUT_GAIN, OUT_SHIFT, OUT
            )  # fmt: skip
        if df is not None:
            g = branched(g, branch, branch_value, cols, inside, PER_CHANNEL)
            g = gained(g, out_weight, cols, inside, OFFSET)
            if OUT > 0:
                pull, mean = pulls_of(g, u, rstd, D, OUT)
                g = through_norm(g, u, pull, mean, D, OUT)
            tl.store(df + place, g, mask=mask)
    program, programs = tl.program_id(0), tl.num_programs(0)
    leave(sum_out_gain, parts, OUT_GAIN, program, programs, cols, inside, D)
    leave(sum_out_shift, parts, OUT_SHIFT, program, programs, cols, inside, D)
    leave(sum_in_gain, parts, IN_GAIN, program, programs, cols, inside, D)
    leave(sum_in_shift, parts, IN_SHIFT, program, programs, cols, inside, D)


@triton.jit(do_not_specialize=["rows"])
def columns(
    d_stream, d_y, stream, f, in_weight, out_scale, in_scale, seed, stats, parts, pulls,
    f_stride, rows, dropout,
    D: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, OFFSET: tl.constexpr,
    KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OUT_GAIN: tl.constexpr, OUT_SHIFT: tl.constexpr, IN_GAIN: tl.constexpr, IN_SHIFT: tl.constexpr,
):  # fmt: skip
    """The sums of ``backward``, for BLOCK columns."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < D
    sum_out_gain = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_out_shift = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_in_gain = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_in_shift = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        there = row < rows
        mask = there[:, None] & inside[None, :]
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        if d_stream is not None:
            total += read(d_stream, row, D, cols, mask).to(tl.float32)
        if d_y is not None:
            g = scaled(read(d_y, row, D, cols, mask).to(tl.float32), in_scale, row, there)
            v = read(stream, row, D, cols, mask).to(tl.float32)
            v, rstd = centred(v, row, there, stats, 1, IN, KEPT)
            g, sum_in_gain, sum_in_shift = _collected(g, v, rstd, sum_in_gain, sum_in_shift, IN_GAIN, IN_SHIFT, IN)
            if OUT_GAIN >= 0 or OUT_SHIFT >= 0:
                pull = tl.load(pulls + 2 * row[:, None], mask=there[:, None], other=0.0)
                mean = tl.load(pulls + 2 * row[:, None] + 1, mask=there[:, None], other=0.0)
                total += through_norm(gained(g, in_weight, cols, inside, OFFSET), v, pull, mean, D, IN)
        if OUT_GAIN >= 0 or OUT_SHIFT >= 0:
            if seed is not None:
                total = kept(total, seed, row, cols, dropout)
            g = scaled(total, out_scale, row, there)
            u, rstd = centred(read(f, row, f_stride, cols, mask).to(tl.float32), row, there, stats, 0, OUT, KEPT)
            g, sum_out_gain, sum_out_shift = _collected(
                g, u, rstd, sum_out_gain, sum_out_shift, OUT_GAIN, OUT_SHIFT, OUT
            )  # fmt: skip
    program, programs = tl.program_id(1), tl.num_programs(1)
    leave(sum_out_gain, parts, OUT_GAIN, program, programs, cols, inside, D)
    leave(sum_out_shift, parts, OUT_SHIFT, program, programs, cols, inside, D)
    leave(sum_in_gain, parts, IN_GAIN, program, programs, cols, inside, D)
    leave(sum_in_shift, parts, IN_SHIFT, program, programs, cols, inside, D)


@triton.jit(do_not_specialize=["programs"])
def finish(
    parts, out_weight, out_bias, branch, d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch,
    programs, branch_value,
    D: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr,
    OUT_GAIN: tl.constexpr, OUT_SHIFT: tl.constexpr, IN_GAIN: tl.constexpr, IN_SHIFT: tl.constexpr,
):  # fmt: skip
    """Add the programs' parts: gradients of gains, biases and, per channel, of the branch's multiplier.

    Some programs process the output norm, the others the next norm.
    """
    cols = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = cols < D
    place = cols[None, :]
    mask = inside[None, :]
    if tl.program_id(1) == 0:
        product = tl.zeros([1, SPAN], tl.float32)
        if OUT_GAIN >= 0:
            part = summed(parts, OUT_GAIN, 0, programs, programs, cols, inside, D, CHUNK, SPAN)
            product += gained(part, out_weight, cols, inside, OFFSET)
            if d_out_weight is not None:
                part = branched(part, branch, branch_value, cols, inside, PER_CHANNEL)
                tl.store(d_out_weight + place, part, mask=mask)
        if OUT_SHIFT >= 0:
            part = summed(parts, OUT_SHIFT, 0, programs, programs, cols, inside, D, CHUNK, SPAN)
            if out_bias is not None:
                product += part * channels(out_bias, cols, inside)
            if d_out_bias is not None:
                part = branched(part, branch, branch_value, cols, inside, PER_CHANNEL)
                tl.store(d_out_bias + place, part, mask=mask)
        if d_branch is not None:
            tl.store(d_branch + place, product, mask=mask)
    else:
        if IN_GAIN >= 0:
            part = summed(parts, IN_GAIN, 0, programs, programs, cols, inside, D, CHUNK, SPAN)
            tl.store(d_in_weight + place, part, mask=mask)
        if IN_SHIFT >= 0:
            part = summed(parts, IN_SHIFT, 0, programs, programs, cols, inside, D, CHUNK, SPAN)
            tl.store(d_in_bias + place, part, mask=mask)
