"""Triton kernels of gate, add, norm and modulation, launched by :mod:`normplace.ops.gate_add_norm.triton`.

They compute what :mod:`normplace.ops.gate_add_norm.reference` defines, on tiles of ROWS × BLOCK elements: whole rows,
padded to a power of two and kept in registers. In the backward pass the rows of a program belong to one sample, so that
it sums the gradients of the sample's factors in registers; ``finish`` adds the sums of the programs of each sample.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from normplace.ops.norm_add_norm.triton_norms import centred, leave, pulls_of, standardised, summed, through_norm
from normplace.ops.norm_add_norm.triton_steps import affine, as_rounded, channels, gained, read


@triton.jit
def _as_promoted(v, one, other):
    """``v`` rounded to the common dtype of two tensors, which is float32 if they differ."""
    if one.dtype.element_ty == other.dtype.element_ty:
        v = as_rounded(v, one)
    return v


@triton.jit
def _factor(pointer, sample, stride, cols, mask):
    """The factors of the rows of a tile, from the samples of these rows."""
    place = pointer + sample.to(tl.int64)[:, None] * stride + cols[None, :]
    return tl.load(place, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)


@triton.jit(do_not_specialize=["rows", "tokens"])
def forward(
    x, f, gate, scale, shift, weight, bias, stream, y, stats,
    x_stride, f_stride, gate_stride, scale_stride, shift_stride, rows, tokens, eps,
    D: tl.constexpr, NORM: tl.constexpr, KEPT: tl.constexpr, ROUNDING: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The new stream, the input of the next branch, and the statistics of the rows unless ``stats`` is None.

    ROUNDING is 0 to round results only, 1 to round after every step, 2 to round also before the gain of the norm.
    Without ``f`` the stream is x, which is normalized and not written.
    """
    cols = tl.arange(0, BLOCK)
    inside = cols < D
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    mask = there[:, None] & inside[None, :]
    sample = row // tokens
    v = read(x, row, x_stride, cols, mask).to(tl.float32)
    place = row.to(tl.int64)[:, None] * D + cols[None, :]
    if f is not None:
        u = read(f, row, f_stride, cols, mask).to(tl.float32)
        if gate is not None:
            u *= _factor(gate, sample, gate_stride, cols, mask)
            if ROUNDING > 0:
                u = _as_promoted(u, f, gate)
        rounded = (v + u).to(stream.dtype.element_ty)
        tl.store(stream + place, rounded, mask=mask, eviction_policy="evict_first")
        v = rounded.to(tl.float32)
    if NORM > 0:
        v = standardised(v, inside, row, there, stats, 1, eps, D, NORM, KEPT, BLOCK)
        source = stream if f is not None else x
        if ROUNDING == 2:
            v = as_rounded(v, source)
        v = affine(v, weight, bias, cols, inside, False)
        if ROUNDING > 0:
            v = as_rounded(v, source)
        if scale is not None:
            factor = 1.0 + _factor(scale, sample, scale_stride, cols, mask)
            if ROUNDING > 0:
                v = _as_promoted(v * as_rounded(factor, scale), source, scale)
            else:
                v *= factor
        if shift is not None:
            v += _factor(shift, sample, shift_stride, cols, mask)
        tl.store(y + place, v, mask=mask, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["tokens", "parts"])
def backward(
    d_stream, d_y, stream, f, gate, scale, weight, stats, dx, df, sums,
    f_stride, gate_stride, scale_stride, tokens, parts,
    D: tl.constexpr, NORM: tl.constexpr, KEPT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    GATE: tl.constexpr, GAIN: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Gradients of rows, and the contribution of this program's rows to the sums of its sample.

    The last constants are the positions of the sums, -1 for a sum that is not needed: the branch times the gradient of
    the stream, the standardised rows times the gradient of y, and the gradient of y.
    """
    program = tl.program_id(0)
    sample = program // parts
    sample_start = sample.to(tl.int64) * tokens
    cols = tl.arange(0, BLOCK)
    inside = cols < D
    sum_gate = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_gain = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_shift = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(program % parts * ROWS, tokens, parts * ROWS, num_stages=STAGES):
        token = first + tl.arange(0, ROWS)
        there = token < tokens
        row = sample_start + token
        mask = there[:, None] & inside[None, :]
        place = row[:, None] * D + cols[None, :]
        if d_y is not None:
            g = read(d_y, row, D, cols, mask)
            v = read(stream, row, D, cols, mask)
        if d_stream is not None:
            total = read(d_stream, row, D, cols, mask)
        if GATE >= 0:
            u = read(f, row, f_stride, cols, mask)
        if d_y is not None:
            g = g.to(tl.float32)
            if SHIFT >= 0:
                sum_shift += g
            v, rstd = centred(v.to(tl.float32), row, there, stats, 1, NORM, KEPT)
            g *= rstd
            if GAIN >= 0:
                sum_gain += g * v
            if scale is not None:
                g *= 1.0 + channels(scale + sample.to(tl.int64) * scale_stride, cols, inside)
            g = gained(g, weight, cols, inside, False)
            pull, mean = pulls_of(g, v, rstd, D, NORM)
            through = through_norm(g, v, pull, mean, D, NORM)
            total = through if d_stream is None else total.to(tl.float32) + through
        else:
            total = total.to(tl.float32)
        if dx is not None:
            tl.store(dx + place, total, mask=mask)
        if GATE >= 0:
            sum_gate += total * u.to(tl.float32)
        if df is not None:
            if gate is not None:
                total *= channels(gate + sample.to(tl.int64) * gate_stride, cols, inside)
            tl.store(df + place, total, mask=mask)
    programs = tl.num_programs(0)
    leave(sum_gate, sums, GATE, program.to(tl.int64), programs, cols, inside, D)
    leave(sum_gain, sums, GAIN, program.to(tl.int64), programs, cols, inside, D)
    leave(sum_shift, sums, SHIFT, program.to(tl.int64), programs, cols, inside, D)


@triton.jit(do_not_specialize=["samples", "parts"])
def finish(
    sums, weight, bias, d_gate, d_scale, d_shift, gain_sums, shift_sums,
    samples, parts,
    D: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr,
    GATE: tl.constexpr, GAIN: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Add the sums of the programs of one sample: the gradients of its gate, scale and shift.

    ``gain_sums`` and ``shift_sums`` receive the sums of which the gradients of gain and bias are combinations.
    """
    SPANS: tl.constexpr = (D + SPAN - 1) // SPAN
    sample = tl.program_id(0) // SPANS
    cols = tl.program_id(0) % SPANS * SPAN + tl.arange(0, SPAN)
    inside = cols < D
    place = sample.to(tl.int64) * D + cols[None, :]
    mask = inside[None, :]
    first, programs = sample.to(tl.int64) * parts, samples * parts
    if GATE >= 0:
        total = summed(sums, GATE, first, parts, programs, cols, inside, D, CHUNK, SPAN)
        tl.store(d_gate + place, total, mask=mask)
    product = tl.zeros([1, SPAN], tl.float32)
    if GAIN >= 0:
        total = summed(sums, GAIN, first, parts, programs, cols, inside, D, CHUNK, SPAN)
        product += gained(total, weight, cols, inside, False)
        if gain_sums is not None:
            tl.store(gain_sums + place, total, mask=mask)
    if SHIFT >= 0:
        total = summed(sums, SHIFT, first, parts, programs, cols, inside, D, CHUNK, SPAN)
        if bias is not None:
            product += total * channels(bias, cols, inside)
        if d_shift is not None:
            tl.store(d_shift + place, total, mask=mask)
        if shift_sums is not None:
            tl.store(shift_sums + place, total, mask=mask)
    if d_scale is not None:
        tl.store(d_scale + place, product, mask=mask)
