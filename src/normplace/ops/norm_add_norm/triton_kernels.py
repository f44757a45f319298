"""The Triton kernels of the boundary; :mod:`normplace.ops.norm_add_norm.triton` launches them.

The mathematics is that of :mod:`normplace.ops.norm_add_norm.reference`. A tile is ROWS × BLOCK elements, whole rows
padded to a power of two and held in registers, so that the variance is taken of the centred row without reading it
again. A program walks over tiles; the backward pass adds up its gains' gradients on the way. Wide rows of RMSNorm take
less time forward if they are read again from a cache, a piece at a time: registers for a piece leave room for more
programs.
"""
# Triton compiles these functions by its own rules, in which constant conditions decide what exists.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from normplace.ops.norm_add_norm.triton_steps import (
    affine,
    branched,
    channels,
    gained,
    kept,
    merged,
    read,
    scaled,
    times,
)
from normplace.ops.rounding import mean_of, reciprocal_root


@triton.jit
def _unpadded(v, inside, D: tl.constexpr, BLOCK: tl.constexpr):
    """A mean has been taken from padding too."""
    return v if D == BLOCK else tl.where(inside[None, :], v, 0.0)


@triton.jit
def _standardised(
    v, inside, row, there, stats, place, eps,
    D: tl.constexpr, KIND: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The standardised rows, whose statistics are stored at ``place`` of the KEPT of each row."""
    stats += row.to(tl.int64) * KEPT + place
    if KIND == 2:
        mean = mean_of(tl.sum(v, 1), D)
        v = _unpadded(v - mean[:, None], inside, D, BLOCK)
        tl.store(stats + 2, mean, mask=there)
    rstd = reciprocal_root(mean_of(tl.sum(v * v, 1), D) + eps)
    tl.store(stats, rstd, mask=there)
    return v * rstd[:, None]


@triton.jit
def _restandardised(v, row, there, stats, place, KIND: tl.constexpr, KEPT: tl.constexpr):
    """The standardised rows once more, and their reciprocal deviations."""
    stats += row.to(tl.int64) * KEPT + place
    rstd = tl.load(stats, mask=there, other=0.0)
    if KIND == 2:
        v -= tl.load(stats + 2, mask=there, other=0.0)[:, None]
    return v * rstd[:, None], rstd


@triton.jit
def _through(g, hat, rstd, D: tl.constexpr, KIND: tl.constexpr):
    """The gradient of what was standardised."""
    if KIND == 2 and D == 1:
        # A single channel is its own mean. Compiled, g times a gain less its mean is one fused operation, which leaves
        # the rounding of the product for the deviation of a constant row, 1 / sqrt(eps), to magnify.
        return tl.zeros_like(g)
    inner = mean_of(tl.sum(g * hat, 1), D)
    if KIND == 2:
        g -= mean_of(tl.sum(g, 1), D)[:, None]
    return (g - hat * inner[:, None]) * rstd[:, None]


@triton.jit(do_not_specialize=["rows"])
def forward(
    x, f, out_weight, out_bias, in_weight, in_bias, branch, out_scale, in_scale, seed, stream, y, stats,
    x_stride, f_stride, rows, out_eps, in_eps, skip, branch_value, dropout,
    D: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr,
    KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The stream, what the next branch reads, and the statistics of the rows."""
    cols = tl.arange(0, BLOCK)
    inside = cols < D
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        there = row < rows
        mask = there[:, None] & inside[None, :]
        u = read(f, row, f_stride, cols, mask).to(tl.float32)
        v = read(x, row, x_stride, cols, mask).to(tl.float32)
        if OUT > 0:
            u = _standardised(u, inside, row, there, stats, 0, out_eps, D, OUT, KEPT, BLOCK)
        v = merged(
            u, v, row, there, cols, inside, out_weight, out_bias, branch, out_scale, seed, skip, branch_value, dropout,
            OFFSET, PER_CHANNEL,
        )  # fmt: skip
        place = row.to(tl.int64)[:, None] * D + cols[None, :]
        rounded = v.to(stream.dtype.element_ty)
        tl.store(stream + place, rounded, mask=mask, eviction_policy="evict_first")
        if IN > 0:
            v = rounded.to(tl.float32)
            v = _standardised(v, inside, row, there, stats, 1, in_eps, D, IN, KEPT, BLOCK)
            v = scaled(affine(v, in_weight, in_bias, cols, inside, OFFSET), in_scale, row, there)
            tl.store(y + place, v, mask=mask, eviction_policy="evict_first")


@triton.jit
def _settled(squares, row, there, stats, place, eps, D: tl.constexpr, KEPT: tl.constexpr):
    """Reciprocal deviations of rows from the squares of their lanes, stored as by ``_standardised``."""
    rstd = reciprocal_root(mean_of(tl.sum(squares, 1), D) + eps)
    tl.store(stats + row.to(tl.int64) * KEPT + place, rstd, mask=there)
    return rstd


@triton.jit(do_not_specialize=["rows"])
def forward_in_pieces(
    x, f, out_weight, out_bias, in_weight, in_bias, branch, out_scale, in_scale, seed, stream, y, stats,
    x_stride, f_stride, rows, out_eps, in_eps, skip, branch_value, dropout,
    D: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr,
    KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As ``forward``, for rows of several whole BLOCKs and norms that take no mean out."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    lane = tl.arange(0, BLOCK)
    inside = lane < BLOCK
    mask = there[:, None] & inside[None, :]
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    if OUT > 0:
        for first in tl.range(0, D, BLOCK):
            u = read(f, row, f_stride, first + lane, mask, "evict_last").to(tl.float32)
            squares += u * u
        out_rstd = _settled(squares, row, there, stats, 0, out_eps, D, KEPT)
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(0, D, BLOCK):
        cols = first + lane
        u = read(f, row, f_stride, cols, mask, "evict_first").to(tl.float32)
        v = read(x, row, x_stride, cols, mask, "evict_first").to(tl.float32)
        if OUT > 0:
            u *= out_rstd[:, None]
        v = merged(
            u, v, row, there, cols, inside, out_weight, out_bias, branch, out_scale, seed, skip, branch_value, dropout,
            OFFSET, PER_CHANNEL,
        )  # fmt: skip
        rounded = v.to(stream.dtype.element_ty)
        tl.store(stream + row.to(tl.int64)[:, None] * D + cols[None, :], rounded, mask=mask)
        if IN > 0:
            v = rounded.to(tl.float32)
            squares += v * v
    if IN > 0:
        in_rstd = _settled(squares, row, there, stats, 1, in_eps, D, KEPT)
        tl.debug_barrier()  # a thread may read what another has written
        for first in tl.range(0, D, BLOCK):
            cols = first + lane
            v = read(stream, row, D, cols, mask, "evict_first").to(tl.float32) * in_rstd[:, None]
            v = scaled(affine(v, in_weight, in_bias, cols, inside, OFFSET), in_scale, row, there)
            tl.store(y + row.to(tl.int64)[:, None] * D + cols[None, :], v, mask=mask)


@triton.jit
def _part(parts, which: tl.constexpr, program, programs, D: tl.constexpr):
    """Where a program leaves its part of one sum."""
    return parts + (which * programs + program) * D


@triton.jit(do_not_specialize=["rows"])
def backward(
    d_stream, d_y, stream, f, out_weight, out_bias, in_weight, in_bias, branch, out_scale, in_scale, seed,
    stats, dx, df, d_out_scale, d_in_scale, parts,
    f_stride, rows, skip, branch_value, dropout,
    D: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr,
    KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OUT_GAIN: tl.constexpr, OUT_SHIFT: tl.constexpr, IN_GAIN: tl.constexpr, IN_SHIFT: tl.constexpr,
):  # fmt: skip
    """Gradients of rows, and of the gains and shifts the part that this program's rows contribute.

    The last constants number the sums that are wanted, and are -1 for the others. The sums leave out the branch's
    multiplier, so that its own gradient follows from them too.
    """
    # Tiles in flight wait in shared memory, and take registers only from where they are used.
    AHEAD: tl.constexpr = STAGES > 1
    cols = tl.arange(0, BLOCK)
    inside = cols < D
    sum_out_gain = tl.zeros([BLOCK], tl.float32)
    sum_out_shift = tl.zeros([BLOCK], tl.float32)
    sum_in_gain = tl.zeros([BLOCK], tl.float32)
    sum_in_shift = tl.zeros([BLOCK], tl.float32)
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
            hat, rstd = _restandardised(v.to(tl.float32), row, there, stats, 1, IN, KEPT)
            if d_in_scale is not None:
                product = tl.sum(g * affine(hat, in_weight, in_bias, cols, inside, OFFSET), 1)
                tl.store(d_in_scale + row, product, mask=there)
            g = scaled(g, in_scale, row, there)
            if IN_GAIN >= 0:
                sum_in_gain += tl.sum(g * hat, 0)
            if IN_SHIFT >= 0:
                sum_in_shift += tl.sum(g, 0)
            through = _through(gained(g, in_weight, cols, inside, OFFSET), hat, rstd, D, IN)
            if IN == 2:
                through = _unpadded(through, inside, D, BLOCK)
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
            hat = u.to(tl.float32)
            if OUT > 0:
                hat, rstd = _restandardised(hat, row, there, stats, 0, OUT, KEPT)
            if d_out_scale is not None:
                u = affine(hat, out_weight, out_bias, cols, inside, OFFSET)
                product = tl.sum(total * branched(u, branch, branch_value, cols, inside, PER_CHANNEL), 1)
                tl.store(d_out_scale + row, product, mask=there)
            if OUT_GAIN >= 0:
                sum_out_gain += tl.sum(g * hat, 0)
        if OUT_SHIFT >= 0:
            sum_out_shift += tl.sum(g, 0)
        if df is not None:
            g = branched(g, branch, branch_value, cols, inside, PER_CHANNEL)
            g = gained(g, out_weight, cols, inside, OFFSET)
            if OUT > 0:
                g = _through(g, hat, rstd, D, OUT)
            tl.store(df + place, g, mask=mask)
    program, programs = tl.program_id(0), tl.num_programs(0)
    if OUT_GAIN >= 0:
        tl.store(_part(parts, OUT_GAIN, program, programs, D) + cols, sum_out_gain, mask=inside)
    if OUT_SHIFT >= 0:
        tl.store(_part(parts, OUT_SHIFT, program, programs, D) + cols, sum_out_shift, mask=inside)
    if IN_GAIN >= 0:
        tl.store(_part(parts, IN_GAIN, program, programs, D) + cols, sum_in_gain, mask=inside)
    if IN_SHIFT >= 0:
        tl.store(_part(parts, IN_SHIFT, program, programs, D) + cols, sum_in_shift, mask=inside)


@triton.jit
def _summed(
    parts, which: tl.constexpr, programs, cols, inside, D: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr
):  # fmt: skip
    part = _part(parts, which, 0, programs, D)
    total = tl.zeros([CHUNK, SPAN], tl.float32)
    for first in range(0, programs, CHUNK):
        number = first + tl.arange(0, CHUNK)
        mask = (number < programs)[:, None] & inside[None, :]
        total += tl.load(part + number[:, None] * D + cols[None, :], mask=mask, other=0.0)
    return tl.sum(total, 0)[None, :]


@triton.jit(do_not_specialize=["programs"])
def finish(
    parts, out_weight, out_bias, branch, d_out_weight, d_out_bias, d_in_weight, d_in_bias, d_branch,
    programs, branch_value,
    D: tl.constexpr, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr,
    OUT_GAIN: tl.constexpr, OUT_SHIFT: tl.constexpr, IN_GAIN: tl.constexpr, IN_SHIFT: tl.constexpr,
):  # fmt: skip
    """Add the programs' parts: the gradients of gains, shifts and, channel by channel, of the branch's multiplier.

    The outer norm is the work of some programs and the inner norm of others.
    """
    cols = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = cols < D
    place = cols[None, :]
    mask = inside[None, :]
    if tl.program_id(1) == 0:
        product = tl.zeros([1, SPAN], tl.float32)
        if OUT_GAIN >= 0:
            part = _summed(parts, OUT_GAIN, programs, cols, inside, D, CHUNK, SPAN)
            product += gained(part, out_weight, cols, inside, OFFSET)
            if d_out_weight is not None:
                part = branched(part, branch, branch_value, cols, inside, PER_CHANNEL)
                tl.store(d_out_weight + place, part, mask=mask)
        if OUT_SHIFT >= 0:
            part = _summed(parts, OUT_SHIFT, programs, cols, inside, D, CHUNK, SPAN)
            if out_bias is not None:
                product += part * channels(out_bias, cols, inside)
            if d_out_bias is not None:
                part = branched(part, branch, branch_value, cols, inside, PER_CHANNEL)
                tl.store(d_out_bias + place, part, mask=mask)
        if d_branch is not None:
            tl.store(d_branch + place, product, mask=mask)
    else:
        if IN_GAIN >= 0:
            part = _summed(parts, IN_GAIN, programs, cols, inside, D, CHUNK, SPAN)
            tl.store(d_in_weight + place, part, mask=mask)
        if IN_SHIFT >= 0:
            part = _summed(parts, IN_SHIFT, programs, cols, inside, D, CHUNK, SPAN)
            tl.store(d_in_bias + place, part, mask=mask)
