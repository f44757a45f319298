"""Triton kernels of the pairwise relation, launched by :mod:`normplace.ops.relation.triton_pairs`.

They compute what :mod:`normplace.ops.relation.pair_reference` defines, from the scale s of every pair::

    n_ij = (a_i + b_j) s_ij - (mean a_i + mean b_j) s_ij

For the exponential, computed in base 2, scales and therefore n are multiplied by log2(e).

Each channel of a pair takes an addition, a multiplication and the activation. Rows are added without centring: if they
nearly cancel, the sum is exact. Backward, these kernels omit the part through s.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from normplace.ops.relation.scan_parts import LN2, widened


@triton.jit
def _activate(x, ACT: tl.constexpr):
    if ACT == "exp":
        return tl.exp2(x)
    if ACT == "relu":
        return tl.maximum(x, 0.0)
    if ACT == "elu":
        return tl.where(x > 0.0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _slope(x, ACT: tl.constexpr):
    if ACT == "exp":
        return tl.exp2(x)
    if ACT == "relu":
        return tl.where(x > 0.0, 1.0, 0.0)
    if ACT == "elu":
        return tl.exp(tl.minimum(x, 0.0))
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _inside(other, T, mask):
    """``mask``, and false where ``other`` is outside the sequence."""
    return mask & (other + mask.to(tl.int32) * 0 < T)


@triton.jit
def _in_width(cols, width, EVEN: tl.constexpr):
    """Mask of the channels; all true if they fill every tile."""
    if EVEN:
        return tl.full(cols.shape, 1, tl.int1)
    return cols < width


@triton.jit
def _read(place, other, T, keep, CHECK: tl.constexpr):
    """The value of ``other`` at ``place``; ``CHECK`` if it may be outside the sequence."""
    if CHECK:
        return tl.load(place + keep.to(tl.int32) * 0, mask=_inside(other, T, keep), other=0.0)
    else:  # noqa: RET505  (both branches define names of different shapes, so only one may be compiled)
        return tl.load(place)


@triton.jit
def _of_pairs(place, mask, CHECK: tl.constexpr):
    """One value for each pair; ``CHECK`` if a pair may not exist."""
    if CHECK:
        return tl.load(place, mask=mask, other=0.0)
    return tl.load(place)


@triton.jit
def _counts(weight, row, other, T, keep, CAUSAL: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr):
    """Mask of the summed pairs of ``row`` and ``other``, which are keys if ``KEYS``, else queries."""
    counts = _inside(other, T, keep)
    if CAUSAL:
        counts = counts & (other >= row if KEYS else other <= row)
    if MASKED:
        counts = counts & (_read(weight + other, other, T, keep, True) > 0.0)
    return counts


@triton.jit
def _row(place, other, T, in_width, CHECK: tl.constexpr):
    """The row of ``other`` at ``place``; ``CHECK`` if it may be outside the sequence."""
    if CHECK:
        in_width = _inside(other, T, in_width)
    return widened(tl.load(place, mask=in_width, other=0.0))


@triton.jit
def _scaled_back(total, ACT: tl.constexpr, NORM: tl.constexpr):
    """A sum of s p without the factor of the scales."""
    if NORM and ACT == "exp":
        return total * LN2
    return total


@triton.jit
def _first_and_last(count, T, ROWS: tl.constexpr, PAIRED: tl.constexpr):
    """The tiles of a program: a short and a long causal tile if ``PAIRED``, else one, the last tile first."""
    last = tl.cdiv(T, ROWS) - 1 - tl.program_id(0) // count
    return (tl.program_id(0) // count if PAIRED else last), last


@triton.jit
def _own_part(begin, end, UNROLL: tl.constexpr, PARTS: tl.constexpr):
    """The range of others from ``begin`` to ``end`` that this program processes, in multiples of ``UNROLL``."""
    if PARTS > 1:
        steps, part = (end - begin) // UNROLL, tl.program_id(2)
        begin, end = begin + steps * part // PARTS * UNROLL, begin + steps * (part + 1) // PARTS * UNROLL
    return begin, end


@triton.jit
def _if_part(which, begin, end, PARTS: tl.constexpr):
    """``end`` for the program of this part, ``begin`` (an empty range) for the others."""
    if PARTS > 1:
        end = tl.where(tl.program_id(2) == which, end, begin)
    return end


@triton.jit
def _add_keys(
    acc, rows, mean, of_b, of_mean, of_scale, of_weight, i, j, D, T, in_width, keep,
    ACT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, CHECK: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Add the activations of ``COUNT`` keys from ``j``; ``CHECK`` if some may be masked."""
    part = tl.zeros_like(acc)
    # All addresses are constant offsets from one, which costs nothing.
    of_b, of_scale, of_mean = of_b + j * D, of_scale + j, of_mean + j
    for k in tl.static_range(COUNT):
        key = j + k
        x = rows + _row(of_b + k * D, key, T, in_width, CHECK)
        if NORM:
            s = _of_pairs(of_scale + k, _inside(key, T, keep), CHECK)
            x = x * s - (mean + _read(of_mean + k, key, T, keep, CHECK)) * s
        term = _activate(x, ACT)
        if CHECK or MASKED:
            term = tl.where(_counts(of_weight, i, key, T, keep, CAUSAL, False, MASKED), term, 0.0)
        part += term
    # Partial sums of few terms keep the error of a long sum small.
    return acc + part


@triton.jit(do_not_specialize=["first"])
def relate(
    a, b, mean_a, mean_b, scale, weight, y, first, count, T, heads, width, stride, part_stride,
    D: tl.constexpr, ACT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, UNROLL: tl.constexpr, PAIRED: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Some channels of the relation of a few queries with every key.

    If keys are cut into several ``PARTS``, a program takes one, and leaves it for :func:`add_parts` to weigh.
    """
    y += tl.program_id(2).to(tl.int64) * part_stride
    local = (tl.program_id(0) % count).to(tl.int64)
    n = local + first
    sequence, head = n // heads, n % heads
    cols = (tl.program_id(1) * COLS + tl.arange(0, COLS))[None, :]
    in_width = _in_width(cols, width, EVEN)
    of_b = b + sequence * T * D + head * width + cols
    of_mean, of_weight = mean_b + n * T, weight + sequence * T
    low, high = _first_and_last(count, T, ROWS, PAIRED)
    for tile in range(low, high + 1, tl.maximum(1, high - low)):
        i = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        keep = i < T
        place = (sequence * T + i) * D + head * width + cols
        rows = tl.load(a + place, mask=keep & in_width, other=0.0).to(tl.float32)
        mean = i.to(tl.float32)
        if NORM:
            mean = tl.load(mean_a + n * T + i, mask=keep, other=0.0)
        # A row past the end reads the scales of the last, which avoids checks; its result is not stored.
        of_scale = scale + (local * T + tl.minimum(i, T - 1)) * stride
        acc = tl.zeros([ROWS, COLS], tl.float32)
        whole = (tile * ROWS if CAUSAL else T) // UNROLL * UNROLL
        end = tl.minimum(T, (tile + 1) * ROWS) if CAUSAL else T
        begin, stop = _own_part(0, whole, UNROLL, PARTS)
        for j in range(begin, stop, UNROLL):
            acc = _add_keys(
                acc, rows, mean, of_b, of_mean, of_scale, of_weight, i, j, D, T, in_width, keep,
                ACT, NORM, MASKED, CAUSAL, False, UNROLL,
            )  # fmt: skip
        for j in range(whole, _if_part(PARTS - 1, whole, end, PARTS), UNROLL):
            acc = _add_keys(
                acc, rows, mean, of_b, of_mean, of_scale, of_weight, i, j, D, T, in_width, keep,
                ACT, NORM, MASKED, CAUSAL, True, UNROLL,
            )  # fmt: skip
        if PARTS == 1:
            acc *= tl.load(of_weight + i, mask=keep, other=0.0)
        tl.store(y + place, acc, mask=keep & in_width)


@triton.jit
def _add_key_slopes(
    acc, rows, g, mean, of_b, of_mean, of_scale, of_factor, of_weight, i, j, channel, width, D, T, step, in_width, keep,
    ACT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, CHECK: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Add s p of ``COUNT`` keys from ``j``, and the contribution of these channels to the factor c of each pair."""
    number = tl.arange(0, COUNT)[None, :]
    share = tl.zeros([acc.shape[0], COUNT], tl.float32)
    if NORM:
        mask = keep & (number >= 0)
        if CHECK:
            mask = mask & (j + number < T)
            if CAUSAL:
                mask = mask & (j + number <= i)
        slot = of_factor + (j + number) * step
        # Loaded early, so that the contribution of the previous channels arrives in time.
        before = tl.load(slot, mask=mask & (channel > 0), other=0.0)
    of_b, of_scale, of_mean = of_b + j * D, of_scale + j, of_mean + j
    for k in tl.static_range(COUNT):
        key = j + k
        counts = keep
        if CHECK or MASKED:
            counts = _counts(of_weight, i, key, T, keep, CAUSAL, False, MASKED)
        x = rows + _row(of_b + k * D, key, T, in_width, CHECK)
        if NORM:
            s = _of_pairs(of_scale + k, counts, CHECK or MASKED)
            x = x * s - (mean + _read(of_mean + k, key, T, keep, CHECK)) * s
            # A padding channel holds the mean alone, which may be any number.
            x = tl.where(in_width, x, 0.0)
            p = g * _slope(x, ACT)
            acc += s * p
            share = tl.where(number == k, tl.sum(p * x, 1)[:, None] * (s * s), share)
        else:
            p = g * _slope(x, ACT)
            acc += tl.where(counts, p, 0.0) if CHECK or MASKED else p
    if NORM:
        share *= (-LN2 * LN2 * LN2 if ACT == "exp" else -1.0) / width
        tl.store(slot, share + before, mask=mask)
    return acc


@triton.jit(do_not_specialize=["first"])
def query_gradients(
    grad, a, b, mean_a, mean_b, scale, factors, weight, da, first, count, T, heads, width, stride, part_stride,
    D: tl.constexpr, ACT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, UNROLL: tl.constexpr, PAIRED: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The sum of s p over all or some keys of a few queries, and the factor c of each pair."""
    da += tl.program_id(2).to(tl.int64) * part_stride
    local = (tl.program_id(0) % count).to(tl.int64)
    n = local + first
    sequence, head = n // heads, n % heads
    of_mean, of_weight = mean_b + n * T, weight + sequence * T
    low, high = _first_and_last(count, T, ROWS, PAIRED)
    for tile in range(low, high + 1, tl.maximum(1, high - low)):
        i = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        keep = i < T
        mean = i.to(tl.float32)
        if NORM:
            mean = tl.load(mean_a + n * T + i, mask=keep, other=0.0)
        of_scale = scale + (local * T + tl.minimum(i, T - 1)) * stride
        if CAUSAL:  # in [j, i + 1], since [i, j] is the scale of the pair
            of_factor, step = factors + local * T * stride + i + 1, local * 0 + stride
        else:
            of_factor, step = factors + (local * T + i) * stride, local * 0 + 1
        w = tl.load(of_weight + i, mask=keep, other=0.0)
        whole = (tile * ROWS if CAUSAL else T) // UNROLL * UNROLL
        end = tl.minimum(T, (tile + 1) * ROWS) if CAUSAL else T
        begin, stop = _own_part(0, whole, UNROLL, PARTS)
        for channel in range(0, width, COLS):
            cols = (channel + tl.arange(0, COLS))[None, :]
            in_width = _in_width(cols, width, EVEN)
            place = (sequence * T + i) * D + head * width + cols
            rows = tl.load(a + place, mask=keep & in_width, other=0.0).to(tl.float32)
            g = tl.load(grad + place, mask=keep & in_width & (w > 0.0), other=0.0).to(tl.float32) * w
            of_b = b + sequence * T * D + head * width + cols
            acc = tl.zeros([ROWS, COLS], tl.float32)
            for j in range(begin, stop, UNROLL):
                acc = _add_key_slopes(
                    acc, rows, g, mean, of_b, of_mean, of_scale, of_factor, of_weight, i, j, channel, width, D, T, step,
                    in_width, keep, ACT, NORM, MASKED, CAUSAL, False, UNROLL,
                )  # fmt: skip
            for j in range(whole, _if_part(PARTS - 1, whole, end, PARTS), UNROLL):
                acc = _add_key_slopes(
                    acc, rows, g, mean, of_b, of_mean, of_scale, of_factor, of_weight, i, j, channel, width, D, T, step,
                    in_width, keep, ACT, NORM, MASKED, CAUSAL, True, UNROLL,
                )  # fmt: skip
            tl.store(da + place, _scaled_back(acc, ACT, NORM), mask=keep & in_width)
            # Another thread may continue this pair with the next channels.
            tl.debug_barrier()


@triton.jit
def _add_query_slopes(
    acc, keys, mean, of_a, of_grad, of_mean, of_scale, of_weight, j, i, D, T, stride, in_width, keep,
    ACT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, CHECK: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Add s p of ``COUNT`` queries from ``i``."""
    of_a, of_grad, of_mean, own_weight = of_a + i * D, of_grad + i * D, of_mean + i, of_weight + i
    of_scale += i * stride
    for k in tl.static_range(COUNT):
        query = i + k
        counts = keep
        if CHECK or MASKED:
            counts = _counts(of_weight, j, query, T, keep, CAUSAL, True, MASKED)
        x = keys + _row(of_a + k * D, query, T, in_width, CHECK)
        g = _row(of_grad + k * D, query, T, in_width, CHECK)
        factor = _read(own_weight + k, query, T, keep, CHECK)
        if NORM:
            s = _of_pairs(of_scale + k * stride, counts, CHECK or MASKED)
            x = x * s - (mean + _read(of_mean + k, query, T, keep, CHECK)) * s
            factor *= s
        term = factor * (g * _slope(x, ACT))
        acc += tl.where(counts, term, 0.0) if CHECK or MASKED else term
    return acc


@triton.jit(do_not_specialize=["first"])
def key_gradients(
    grad, a, b, mean_a, mean_b, scale, weight, db, first, count, T, heads, width, stride, part_stride,
    D: tl.constexpr, ACT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, UNROLL: tl.constexpr, PAIRED: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Some channels of the sum of s p over all or some queries of a few keys."""
    db += tl.program_id(2).to(tl.int64) * part_stride
    local = (tl.program_id(0) % count).to(tl.int64)
    n = local + first
    sequence, head = n // heads, n % heads
    cols = (tl.program_id(1) * COLS + tl.arange(0, COLS))[None, :]
    in_width = _in_width(cols, width, EVEN)
    of_rows = sequence * T * D + head * width + cols
    of_mean, of_weight = mean_a + n * T, weight + sequence * T
    stride = local * 0 + stride  # 64 bits, because a sequence of 46,341 rows has 2^31 pairs
    low, high = _first_and_last(count, T, ROWS, PAIRED)
    for turn in range(low, high + 1, tl.maximum(1, high - low)):
        tile = tl.cdiv(T, ROWS) - 1 - turn  # start with the first keys, which have the most queries
        j = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        keep = j < T
        place = (sequence * T + j) * D + head * width + cols
        keys = tl.load(b + place, mask=keep & in_width, other=0.0).to(tl.float32)
        mean = j.to(tl.float32)
        if NORM:
            mean = tl.load(mean_b + n * T + j, mask=keep, other=0.0)
        of_scale = scale + local * T * stride + tl.minimum(j, T - 1)
        if MASKED:
            keep = keep & (tl.load(of_weight + j, mask=keep, other=0.0) > 0.0)
        acc = tl.zeros([ROWS, COLS], tl.float32)
        # Queries that may precede a key, those after all keys of the tile, and the remainder.
        begin = tile * ROWS if CAUSAL else 0
        middle = tl.minimum(T, tl.cdiv(begin + ROWS, UNROLL) * UNROLL) if CAUSAL else 0
        begin = begin // UNROLL * UNROLL
        end = middle + tl.maximum(T - middle, 0) // UNROLL * UNROLL
        start, stop = _own_part(middle, end, UNROLL, PARTS)
        for i in range(begin, _if_part(0, begin, middle, PARTS), UNROLL):
            acc = _add_query_slopes(
                acc, keys, mean, a + of_rows, grad + of_rows, of_mean, of_scale, of_weight, j, i, D, T, stride,
                in_width, keep, ACT, NORM, MASKED, CAUSAL, True, UNROLL,
            )  # fmt: skip
        for i in range(start, stop, UNROLL):
            acc = _add_query_slopes(
                acc, keys, mean, a + of_rows, grad + of_rows, of_mean, of_scale, of_weight, j, i, D, T, stride,
                in_width, keep, ACT, NORM, MASKED, CAUSAL, False, UNROLL,
            )  # fmt: skip
        for i in range(end, _if_part(PARTS - 1, end, T, PARTS), UNROLL):
            acc = _add_query_slopes(
                acc, keys, mean, a + of_rows, grad + of_rows, of_mean, of_scale, of_weight, j, i, D, T, stride,
                in_width, keep, ACT, NORM, MASKED, CAUSAL, True, UNROLL,
            )  # fmt: skip
        tl.store(db + place, _scaled_back(acc, ACT, NORM), mask=(j < T) & in_width)


@triton.jit
def add_parts(parts, weight, y, part_stride, D, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the parts that :func:`relate` wrote."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + part * part_stride + place, mask=place < part_stride, other=0.0)
    w = tl.load(weight + place // D, mask=place < part_stride, other=0.0)
    tl.store(y + place, total * w, mask=place < part_stride)
