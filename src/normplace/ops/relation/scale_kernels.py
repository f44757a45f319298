"""Triton kernels of the scales of pairs, launched by :mod:`normplace.ops.relation.triton_pairs`.

With ~ for a centred row, one matrix product gives the scale s of every pair::

    |x~_ij|² = |a~_i|² + |b~_j|² + 2 a~_i·b~_j        s_ij = 1 / sqrt(|x~_ij|² / D + eps)

If a pair nearly cancels, the product has lost its digits, and the square is summed from the pair itself. Rows in half
precision are first multiplied without centring, with ``a~·b~ = a·b - D mean a mean b``: their products are exact. This
loses digits if means are large compared with deviations; such tiles are deferred to the other kernel. The kernels store
``GAIN`` times the scale.

Backward, the part through s is ``c_ij x~_ij`` with ``c_ij = -s_ij² mean(p_ij n_ij)``: a matrix product for each side.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from normplace.ops.relation.scan_parts import weights_of

# Below this fraction of |a~|² + |b~|², the square of a pair is summed from the pair itself.
NEAR = tl.constexpr(0.25)


@triton.jit
def _statistics(x, mean, square, n, t, T, D, heads, width, WIDTH: tl.constexpr):
    """The mean and the sum of squared deviations of one head of rows ``t``."""
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
def row_statistics(
    a, b, mean_a, square_a, mean_b, square_b, weight, T, D, heads, width,
    NORM: tl.constexpr, MASKED: tl.constexpr, MEAN: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The statistics of each head of a few rows of a and b if ``NORM``, and the weights of the rows without a mask."""
    blocks = tl.cdiv(T, ROWS)
    n, block = tl.program_id(0).to(tl.int64) // blocks, tl.program_id(0) % blocks
    t = block * ROWS + tl.arange(0, ROWS)
    if not MASKED:  # noqa: SIM102  (decided at compile time, unlike the next condition)
        if (tl.program_id(1) == 0) & (n % heads == 0):
            sequence = n // heads
            tl.store(weight + sequence * T + t, weights_of(weight, sequence, t, T, False, MEAN, CAUSAL), mask=t < T)
    if NORM:
        if tl.program_id(1) == 0:
            _statistics(a, mean_a, square_a, n, t, T, D, heads, width, WIDTH)
        else:
            _statistics(b, mean_b, square_b, n, t, T, D, heads, width, WIDTH)


@triton.jit
def _rows(x, sequence, head, t, cols, T, D, width):
    """Rows ``t`` × ``cols``, zero outside."""
    mask = (t < T)[:, None] & (cols < width)[None, :]
    return tl.load(x + ((sequence * T + t) * D + head * width)[:, None] + cols[None, :], mask=mask, other=0.0)


@triton.jit
def _centred(x, mean, sequence, head, n, t, cols, T, D, width):
    """Centred rows ``t`` × ``cols``, zero outside."""
    mask = (t < T)[:, None] & (cols < width)[None, :]
    value = _rows(x, sequence, head, t, cols, T, D, width).to(tl.float32)
    centre = tl.load(mean + n * T + t, mask=t < T, other=0.0)
    return tl.where(mask, value - centre[:, None], 0.0)


@triton.jit
def _counted(i, j, T, CAUSAL: tl.constexpr):
    pair = (i < T)[:, None] & (j < T)[None, :]
    if CAUSAL:
        pair = pair & (j[None, :] <= i[:, None])
    return pair


@triton.jit
def _tile():
    """The index of this tile of pairs."""
    tiles = tl.num_programs(0)
    return (tl.program_id(2).to(tl.int64) * tiles + tl.program_id(0)) * tiles + tl.program_id(1)


@triton.jit
def _store_scales(scale, values, pair, local, i, j, T, stride):
    """Store the scales of a tile of pairs."""
    tl.store(scale + (local * T + i.to(tl.int64)[:, None]) * stride + j[None, :], values, mask=pair)


@triton.jit(do_not_specialize=["first"])
def quick_scales(
    a, b, mean_a, square_a, mean_b, square_b, scale, left, first, T, D, heads, width, eps, stride,
    CAUSAL: tl.constexpr, GAIN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The scale of every pair of a tile, and whether the tile is deferred to :func:`pair_scales`."""
    local = tl.program_id(2).to(tl.int64)
    n = local + first
    sequence, head = n // heads, n % heads
    if not CAUSAL or tl.program_id(1) <= tl.program_id(0):
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        j = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        dot = tl.zeros([ROWS, ROWS], tl.float32)
        for begin in range(0, width, COLS):
            cols = begin + tl.arange(0, COLS)
            rows, keys = _rows(a, sequence, head, i, cols, T, D, width), _rows(b, sequence, head, j, cols, T, D, width)
            if WIDEN:
                rows, keys = rows.to(tl.float32), keys.to(tl.float32)
            dot = tl.dot(rows, tl.trans(keys), dot)
        centre_a = tl.load(mean_a + n * T + i, mask=i < T, other=0.0)[:, None]
        centre_b = tl.load(mean_b + n * T + j, mask=j < T, other=0.0)[None, :]
        lengths = tl.load(square_a + n * T + i, mask=i < T, other=1.0)[:, None]
        lengths = lengths + tl.load(square_b + n * T + j, mask=j < T, other=1.0)[None, :]
        total = lengths + 2.0 * (dot - (width * centre_a) * centre_b)
        pair = _counted(i, j, T, CAUSAL)
        means = width * centre_a * centre_a + width * centre_b * centre_b
        wrong = pair & ((total <= NEAR * lengths) | (means > lengths))
        tl.store(left + _tile(), tl.max(tl.max(wrong.to(tl.float32), 1), 0))
        values = GAIN * tl.rsqrt(tl.maximum(total / width + eps, 1e-38))
        values = tl.where(lengths < float("inf"), values, float("nan"))
        _store_scales(scale, values, pair, local, i, j, T, stride)


@triton.jit(do_not_specialize=["first"])
def pair_scales(
    a, b, mean_a, square_a, mean_b, square_b, scale, left, first, T, D, heads, width, eps, stride,
    CAUSAL: tl.constexpr, GAIN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FLAT: tl.constexpr,
    LEFT: tl.constexpr,
):  # fmt: skip
    """The scale of every pair of a tile of queries and keys; only of deferred tiles if ``LEFT``.

    Where the activation has a kink at 0, an exactly constant pair must be exactly 0: ``FLAT`` makes its scale that.
    """
    local = tl.program_id(2).to(tl.int64)
    n = local + first
    sequence, head = n // heads, n % heads
    wanted = tl.program_id(0) >= 0
    if CAUSAL:
        wanted = tl.program_id(1) <= tl.program_id(0)
    if LEFT:
        wanted = tl.load(left + _tile(), mask=wanted, other=0.0) > 0.0
    if wanted:
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
        pair = _counted(i, j, T, CAUSAL)
        near = pair & (total <= NEAR * lengths)
        if tl.max(tl.max(near.to(tl.int32), 1), 0) > 0:
            of_a = a + (sequence * T + i) * D + head * width
            of_b = b + (sequence * T + j) * D + head * width
            start = tl.load(of_a, mask=i < T, other=0.0).to(tl.float32)[:, None]
            # Minus its first channel, so that a constant pair is exactly zero.
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
        known = (total if FLAT else variance) > 0.0
        values = tl.where(known, GAIN / tl.sqrt_rn(tl.where(known, variance, 1.0)), 0.0)
        values = tl.where(lengths < float("inf"), values, float("nan"))
        _store_scales(scale, values, pair, local, i, j, T, stride)


@triton.jit
def _add_side(
    own, other, mean_own, mean_other, factors, weight, out, first, T, D, heads, width, stride,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Add the sum of c x~ over the keys of a few queries, or over the queries of a few keys."""
    local = tl.program_id(2).to(tl.int64) // 2
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
    factors += local * T * stride
    if CAUSAL:
        factors += 1
    if KEYS == CAUSAL:
        row, step = factors + r.to(tl.int64) * stride, local * 0 + 1
    else:
        row, step = factors + r, local * 0 + stride
    for o in range(begin, end, STEP):
        c = o + tl.arange(0, STEP)
        there = c < T
        if MASKED:
            there = there & (tl.load(weight + sequence * T + c, mask=there, other=0.0) > 0.0)
        pair = here[:, None] & there[None, :]
        if CAUSAL:
            pair = pair & (c[None, :] >= r[:, None] if KEYS else c[None, :] <= r[:, None])
        factor = tl.load(row[:, None] + (c * step)[None, :], mask=pair, other=0.0)
        rows = _centred(other, mean_other, sequence, head, n, c, cols, T, D, width)
        product = tl.dot(factor, rows, product, input_precision=PRECISION)
        total += tl.sum(factor, 1)
    product += total[:, None] * _centred(own, mean_own, sequence, head, n, r, cols, T, D, width)
    place = (sequence * T + r)[:, None] * D + head * width + cols[None, :]
    mask = (r < T)[:, None] & (cols < width)[None, :]
    tl.store(out + place, tl.load(out + place, mask=mask, other=0.0) + product, mask=mask)


@triton.jit(do_not_specialize=["first"])
def add_through_scale(
    a, b, mean_a, mean_b, factors, weight, da, db, first, T, D, heads, width, stride,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Add the part through the scales to both gradients."""
    if tl.program_id(2) % 2 == 0:
        _add_side(
            a, b, mean_a, mean_b, factors, weight, da, first, T, D, heads, width, stride,
            MASKED, CAUSAL, False, PRECISION, ROWS, COLS, STEP,
        )  # fmt: skip
    else:
        _add_side(
            b, a, mean_b, mean_a, factors, weight, db, first, T, D, heads, width, stride,
            MASKED, CAUSAL, True, PRECISION, ROWS, COLS, STEP,
        )  # fmt: skip


@triton.jit
def _less_mean(x, out, rows, width, part_stride, PARTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    r = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, WIDTH)[None, :]
    mask = (r < rows) & (cols < width)
    value = tl.load(x + r * width + cols, mask=mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        value += tl.load(x + part * part_stride + r * width + cols, mask=mask, other=0.0)
    tl.store(out + r * width + cols, value - (tl.sum(value, 1) / width)[:, None], mask=mask)


@triton.jit
def remove_means(
    da, db, out_a, out_b, rows, width, part_stride,
    PARTS_A: tl.constexpr, PARTS_B: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A few rows of both gradients: the sums of their parts, centred, in the precision of the output."""
    if tl.program_id(1) == 0:
        _less_mean(da, out_a, rows, width, part_stride, PARTS_A, ROWS, WIDTH)
    else:
        _less_mean(db, out_b, rows, width, part_stride, PARTS_B, ROWS, WIDTH)
