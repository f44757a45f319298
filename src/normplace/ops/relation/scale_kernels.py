"""The Triton kernels of the scales of pairs; :mod:`normplace.ops.relation.triton_pairs` launches them.

With rows less their means, written ~, one matrix product gives the scale s of every pair::

    |x~_ij|² = |a~_i|² + |b~_j|² + 2 a~_i·b~_j        s_ij = 1 / sqrt(|x~_ij|² / D + eps)

Where a pair nearly cancels, the product has lost its digits, and the square is summed from the pair itself.

Backward, the part through s is ``c_ij x~_ij`` with ``c_ij = -s_ij² mean(p_ij n_ij)``: a matrix product for either side.
"""
# Triton compiles these functions by its own rules, in which constant conditions decide what exists.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

# Below this part of |a~|² + |b~|², the square of a pair is summed from the pair.
NEAR = tl.constexpr(0.25)


@triton.jit
def row_statistics(x, mean, square, T, D, heads, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The mean and the sum of squares about it, of each head of a few rows."""
    blocks = tl.cdiv(T, ROWS)
    n, block = tl.program_id(0).to(tl.int64) // blocks, tl.program_id(0) % blocks
    t = block * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, WIDTH)
    mask = (t < T)[:, None] & (cols < width)[None, :]
    start = ((n // heads) * T + t) * D + (n % heads) * width
    first = tl.load(x + start, mask=t < T, other=0.0).to(tl.float32)
    value = tl.load(x + start[:, None] + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    value = tl.where(mask, value - first[:, None], 0.0)
    centre = tl.sum(value, 1) / width
    value = tl.where(mask, value - centre[:, None], 0.0)
    tl.store(mean + n * T + t, first + centre, mask=t < T)
    tl.store(square + n * T + t, tl.sum(value * value, 1), mask=t < T)


@triton.jit
def _centred(x, mean, sequence, head, n, t, cols, T, D, width):
    """Rows ``t`` × ``cols`` less their means, zero outside."""
    mask = (t < T)[:, None] & (cols < width)[None, :]
    place = (sequence * T + t)[:, None] * D + head * width + cols[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    centre = tl.load(mean + n * T + t, mask=t < T, other=0.0)
    return tl.where(mask, value - centre[:, None], 0.0)


@triton.jit
def pair_scales(
    a, b, mean_a, square_a, mean_b, square_b, scale, first, T, D, heads, width, eps, stride,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The scale of every pair of a tile of queries and keys."""
    local = tl.program_id(2).to(tl.int64)
    n = local + first
    sequence, head = n // heads, n % heads
    if not CAUSAL or tl.program_id(1) <= tl.program_id(0):
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        j = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        dot = tl.zeros([ROWS, ROWS], tl.float32)
        for begin in range(0, width, COLS):
            cols = begin + tl.arange(0, COLS)
            rows = _centred(a, mean_a, sequence, head, n, i, cols, T, D, width)
            keys = _centred(b, mean_b, sequence, head, n, j, cols, T, D, width)
            dot = tl.dot(rows, tl.trans(keys), dot, input_precision="tf32x3")
        lengths = tl.load(square_a + n * T + i, mask=i < T, other=1.0)[:, None]
        lengths = lengths + tl.load(square_b + n * T + j, mask=j < T, other=1.0)[None, :]
        total = lengths + 2.0 * dot
        pair = (i < T)[:, None] & (j < T)[None, :]
        if CAUSAL:
            pair = pair & (j[None, :] <= i[:, None])
        near = pair & (total <= NEAR * lengths)
        if tl.max(tl.max(near.to(tl.int32), 1), 0) > 0:
            of_a = a + (sequence * T + i) * D + head * width
            of_b = b + (sequence * T + j) * D + head * width
            start = tl.load(of_a, mask=i < T, other=0.0).to(tl.float32)[:, None]
            # Less its first channel, so that a constant pair is exactly zero.
            start = start + tl.load(of_b, mask=j < T, other=0.0).to(tl.float32)[None, :]
            centre = tl.zeros([ROWS, ROWS], tl.float32)
            for d in range(width):
                x = tl.load(of_a + d, mask=i < T, other=0.0).to(tl.float32)[:, None]
                centre += (x + tl.load(of_b + d, mask=j < T, other=0.0).to(tl.float32)[None, :]) - start
            centre = centre / width
            exact = tl.zeros([ROWS, ROWS], tl.float32)
            for d in range(width):
                x = tl.load(of_a + d, mask=i < T, other=0.0).to(tl.float32)[:, None]
                x = (x + tl.load(of_b + d, mask=j < T, other=0.0).to(tl.float32)[None, :]) - start - centre
                exact += x * x
            total = tl.where(near, exact, total)
        variance = total / width + eps
        found = tl.where(variance > 0.0, 1.0 / tl.sqrt_rn(tl.where(variance > 0.0, variance, 1.0)), 0.0)
        tl.store(scale + local * T * stride + i.to(tl.int64)[:, None] * stride + j[None, :], found, mask=pair)


@triton.jit
def add_through_scale(
    own, other, mean_own, mean_other, scale, inner, weight, out, first, T, D, heads, width, stride, inner_own,
    inner_other, MASKED: tl.constexpr, CAUSAL: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Add the sum of c x~ over the keys of a few queries, or over the queries of a few keys."""
    local = tl.program_id(2).to(tl.int64)
    n = local + first
    sequence, head = n // heads, n % heads
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    product = tl.zeros([ROWS, COLS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    begin, end = 0, T
    if CAUSAL:
        if KEYS:
            begin = tl.program_id(0) * ROWS
        else:
            end = tl.minimum(T, (tl.program_id(0) + 1) * ROWS)
    here = r < T
    if MASKED:
        here = here & (tl.load(weight + sequence * T + r, mask=here, other=0.0) > 0.0)
    for o in range(begin, end, STEP):
        c = o + tl.arange(0, STEP)
        there = c < T
        if MASKED:
            there = there & (tl.load(weight + sequence * T + c, mask=there, other=0.0) > 0.0)
        pair = here[:, None] & there[None, :]
        if CAUSAL:
            pair = pair & (c[None, :] >= r[:, None] if KEYS else c[None, :] <= r[:, None])
        mine, theirs = r.to(tl.int64)[:, None], c.to(tl.int64)[None, :]
        of_scale = scale + local * T * stride + (theirs * stride + mine if KEYS else mine * stride + theirs)
        s = tl.load(of_scale, mask=pair, other=0.0)
        slot = inner + local * T * stride + mine * inner_own + theirs * inner_other
        factor = tl.load(slot, mask=pair, other=0.0) * (-s * s / width)
        rows = _centred(other, mean_other, sequence, head, n, c, cols, T, D, width)
        product = tl.dot(factor, rows, product, input_precision="tf32x3")
        total += tl.sum(factor, 1)
    product += total[:, None] * _centred(own, mean_own, sequence, head, n, r, cols, T, D, width)
    place = (sequence * T + r)[:, None] * D + head * width + cols[None, :]
    mask = (r < T)[:, None] & (cols < width)[None, :]
    tl.store(out + place, tl.load(out + place, mask=mask, other=0.0) + product, mask=mask)
