"""Triton kernels of generalized aggregation, launched by :mod:`normplace.ops.aggregate.triton`.

They compute what :mod:`normplace.ops.aggregate.reference` defines, with an online softmax: about one exponential per
edge and channel. A program processes a few pieces of rows at a time. Each thread has its own channels, so threads
exchange nothing. A tile is unrolled edges × pieces × channels, with its first axis within a thread: all its loads are
issued before the first is used.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl


@triton.jit
def _load_exponent(exponent, cols, in_width, PER_CHANNEL: tl.constexpr, real: tl.constexpr):
    """The exponent: one number, or one for each of the columns."""
    t = tl.load(exponent + cols, mask=in_width, other=1.0) if PER_CHANNEL else tl.load(exponent)
    return t.to(real)


@triton.jit
def _gap(t, value, pivot):
    return tl.where(value == pivot, 0.0, t * (value - pivot))


@triton.jit
def _expm1_ratio(u, ex):
    # Kahan's quotient near zero: exp(u) - 1 has lost digits there, but its error cancels in the quotient.
    near = tl.where(ex == 1.0, 1.0, (ex - 1.0) / tl.log(tl.where((ex == 1.0) | (ex <= 0.0), 2.0, ex)))
    return tl.where(tl.abs(u) < 0.5, near, (ex - 1.0) / tl.where(u == 0.0, 1.0, u))


@triton.jit
def _log1p_ratio(u):
    one = 1.0 + u
    return tl.where(one == 1.0, 1.0, tl.log(one) / tl.where(one == 1.0, 1.0, one - 1.0))


@triton.jit
def _psi(u, ex):
    s = u * (1 / 43545600) + 1 / 3991680
    s = s * u + 1 / 403200
    s = s * u + 1 / 45360
    s = s * u + 1 / 5760
    s = s * u + 1 / 840
    s = s * u + 1 / 144
    s = s * u + 1 / 30
    s = s * u + 1 / 8
    s = s * u + 1 / 3
    s = s * u + 1 / 2
    safe = tl.where(u == 0.0, 1.0, u)
    return tl.where(tl.abs(u) < 0.25, s, (ex - (ex - 1.0) / safe) / safe)


@triton.jit
def _edge_term(edge, weight, e, there, mask, cols, D, K, EDGE: tl.constexpr, real: tl.constexpr):
    """The terms of the edges ``e``, unrolled edges × pieces."""
    if EDGE == 1:
        term = tl.load(edge + e[:, :, None] * D + cols, mask=mask, other=0.0).to(real)
    elif EDGE == 3:
        kind = tl.load(edge + e, mask=there, other=0).to(tl.int64)
        # A type outside the table is not read and makes its row nan.
        known = mask & ((kind >= 0) & (kind < K))[:, :, None]
        term = tl.load(weight + kind[:, :, None] * D + cols, mask=known, other=0.0).to(real)
        term = tl.where(known == mask, term, float("nan"))
    else:
        term = tl.zeros_like(mask.to(real))
        for f in range(K):
            value = tl.load(edge + e * K + f, mask=there, other=0.0).to(real)
            # Every piece reads it again, so that no thread waits for another.
            row = tl.load(weight + f * D + e[:, :, None] * 0 + cols, mask=mask, other=0.0).to(real)
            term += value[:, :, None] * row
    return term


@triton.jit
def _finish(c, s, w, n, t, POWER: tl.constexpr):
    """The aggregate and what the backward pass needs, from pivot, sum and weighted sum."""
    if POWER:
        mean, excess = s / n, w / n
        k = c + tl.where(mean < 0.5, tl.log(mean) / t, excess * _log1p_ratio(t * excess))
        return tl.exp(k), k
    y = c + w / s
    return y, tl.log(s) + _gap(t, c, y)


@triton.jit
def forward(
    x, exponent, edge, weight, indices, edges, pieces, num_pieces, y, k, part_c, part_s, part_w, D, K,
    EPS: tl.constexpr, POWER: tl.constexpr, EDGE: tl.constexpr, RELU: tl.constexpr, PIECES: tl.constexpr,
    WIDTH: tl.constexpr, UNROLL: tl.constexpr, PER_CHANNEL: tl.constexpr, real: tl.constexpr,
):  # fmt: skip
    """Aggregate the edges of a few pieces; a piece of a split row writes its pivot and sums to a slot."""
    item = tl.program_id(0) * PIECES + tl.arange(0, PIECES)
    cols = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, None, :]
    ahead = tl.arange(0, UNROLL)[:, None]
    row = tl.load(pieces + item, mask=item < num_pieces, other=-1).to(tl.int64)
    exists = row >= 0
    start = tl.load(pieces + num_pieces + item, mask=exists, other=0).to(tl.int64)
    length = tl.load(pieces + 2 * num_pieces + item, mask=exists, other=0).to(tl.int64) - start
    slot = tl.load(pieces + 3 * num_pieces + item, mask=exists, other=-1).to(tl.int64)
    span = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    t = _load_exponent(exponent, span, span < D, PER_CHANNEL, real)
    if PER_CHANNEL:
        t = t[None, :]
    sign = tl.where(t < 0.0, -1.0, 1.0).to(real)
    c = tl.zeros([PIECES, WIDTH], real)
    s = tl.zeros([PIECES, WIDTH], real)
    w = tl.zeros([PIECES, WIDTH], real)
    for first in range(0, tl.max(length).to(tl.int32), UNROLL):
        there = first + ahead < length[None, :]
        mask = there[:, :, None] & (cols < D)
        source = tl.load(indices + start[None, :] + first + ahead, mask=there, other=0).to(tl.int64)
        v = tl.load(x + source[:, :, None] * D + cols, mask=mask, other=0.0).to(real)
        if EDGE > 0:
            e = tl.load(edges + start[None, :] + first + ahead, mask=there, other=0).to(tl.int64)
            v += _edge_term(edge, weight, e, there, mask, cols, D, K, EDGE, real)
        if RELU:
            v = tl.where(v <= 0.0, 0.0, v)
        v += EPS  # a constant, because a float argument would be rounded to float32
        if POWER:
            v = tl.log(tl.where(mask, v, 1.0))
        signed = v * (sign[None, :, :] if PER_CHANNEL else sign)
        top = sign * tl.max(tl.where(mask, signed, float("-inf")), 0)
        best = tl.where(first == 0, top, sign * tl.maximum(c * sign, top * sign))
        shift = tl.where(first == 0, 0.0, c - best)
        old = tl.where(shift == 0.0, 0.0, t * shift)
        r = tl.exp(old)
        u = _gap(t[None, :, :] if PER_CHANNEL else t, v, best[None, :, :])
        ex = tl.exp(u)
        z = tl.where(mask, ex, 0.0)
        diff = tl.where(mask, v - best[None, :, :], 0.0)
        if POWER:
            # Outside the mask the exponential may be infinite.
            lifts = tl.where(mask, diff * _expm1_ratio(u, ex), 0.0)
            w = r * w + first * shift * _expm1_ratio(old, r) + tl.sum(lifts, 0)
        else:
            w = r * (w + s * shift) + tl.sum(z * diff, 0)
        s = r * s + tl.sum(z, 0)
        c = best
    cols = span
    in_width = cols < D
    whole = exists & (slot < 0)
    empty = (length == 0)[:, None]
    out, kept = _finish(c, tl.where(empty, 1.0, s), w, tl.maximum(length, 1).to(real)[:, None], t, POWER)
    place = row[:, None] * D + cols[None, :]
    tl.store(y + place, tl.where(empty, 0.0, out), mask=whole[:, None] & in_width[None, :])
    tl.store(k + place, tl.where(empty, 0.0, kept), mask=whole[:, None] & in_width[None, :])
    place = slot[:, None] * D + cols[None, :]
    mask = (exists & (slot >= 0))[:, None] & in_width[None, :]
    tl.store(part_c + place, c, mask=mask)
    tl.store(part_s + place, s, mask=mask)
    tl.store(part_w + place, w, mask=mask)


@triton.jit
def merge_forward(
    exponent, indptr, hubs, num_hubs, part_c, part_s, part_w, y, k, D, piece,
    POWER: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, PER_CHANNEL: tl.constexpr, real: tl.constexpr,
):  # fmt: skip
    """Merge the sums of the pieces of a split row."""
    hub = tl.program_id(0)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = cols < D
    row = tl.load(hubs + hub).to(tl.int64)
    if row >= 0:
        first = tl.load(hubs + num_hubs + hub).to(tl.int64)
        count = tl.load(hubs + 2 * num_hubs + hub).to(tl.int32)
        degree = tl.load(indptr + row + 1) - tl.load(indptr + row)
        t = _load_exponent(exponent, cols, in_width, PER_CHANNEL, real)
        c = tl.load(part_c + first * D + cols, mask=in_width, other=0.0)
        s = tl.zeros([WIDTH], real)
        w = tl.zeros([WIDTH], real)
        done = 0
        for begin in range(0, count, SLOTS):
            number = begin + tl.arange(0, SLOTS)
            there = number < count
            mask = there[:, None] & in_width[None, :]
            place = (first + number)[:, None] * D + cols[None, :]
            c2 = tl.load(part_c + place, mask=mask, other=0.0)
            s2 = tl.load(part_s + place, mask=mask, other=0.0)
            w2 = tl.load(part_w + place, mask=mask, other=0.0)
            c2 = tl.where(mask, c2, c[None, :])
            best = tl.where(t < 0.0, tl.minimum(c, tl.min(c2, 0)), tl.maximum(c, tl.max(c2, 0)))
            counts = tl.where(there, tl.minimum(piece, degree - number * piece), 0).to(real)
            u = _gap(t, c, best)
            u2 = _gap(t[None, :] if PER_CHANNEL else t, c2, best[None, :])
            ex = tl.exp(u)
            ex2 = tl.exp(u2)
            if POWER:
                shift = done * (c - best) * _expm1_ratio(u, ex)
                shift2 = counts[:, None] * (c2 - best[None, :]) * _expm1_ratio(u2, ex2)
                w = w * ex + shift + tl.sum(w2 * ex2 + shift2, 0)
            else:
                w = ex * (w + s * (c - best)) + tl.sum(ex2 * (w2 + s2 * (c2 - best[None, :])), 0)
            s = s * ex + tl.sum(s2 * ex2, 0)
            c = best
            done += SLOTS * piece
        out, kept = _finish(c, s, w, degree.to(real), t, POWER)
        tl.store(y + row * D + cols, out, mask=in_width)
        tl.store(k + row * D + cols, kept, mask=in_width)


@triton.jit
def backward(
    grad, x, exponent, edge, weight, indices, edges, degree_ptr, pieces, num_pieces, y, k,
    dx, part, d_edge, d_weight, d_exponent, D, K,
    EPS: tl.constexpr, POWER: tl.constexpr, EDGE: tl.constexpr, RELU: tl.constexpr, SEMI: tl.constexpr,
    NEED_EXPONENT: tl.constexpr, NEED_EDGE: tl.constexpr, NEED_WEIGHT: tl.constexpr, PIECES: tl.constexpr,
    WIDTH: tl.constexpr, UNROLL: tl.constexpr, FEATURES: tl.constexpr, PER_CHANNEL: tl.constexpr, real: tl.constexpr,
):  # fmt: skip
    """Gradients of the rows of a few pieces, from the edges that leave them."""
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = cols < D
    feature = tl.arange(0, FEATURES)[None, :, None]
    ahead = tl.arange(0, UNROLL)[:, None]
    t = _load_exponent(exponent, cols, in_width, PER_CHANNEL, real)
    if PER_CHANNEL:
        t = t[None, None, :]
    d_t = tl.zeros([PIECES, WIDTH], real)
    d_w = tl.zeros([FEATURES, WIDTH], real)
    for group in range(tl.program_id(0), tl.cdiv(num_pieces, PIECES), tl.num_programs(0)):
        item = group * PIECES + tl.arange(0, PIECES)
        row = tl.load(pieces + item, mask=item < num_pieces, other=-1).to(tl.int64)
        exists = row >= 0
        start = tl.load(pieces + num_pieces + item, mask=exists, other=0).to(tl.int64)
        length = tl.load(pieces + 2 * num_pieces + item, mask=exists, other=0).to(tl.int64) - start
        slot = tl.load(pieces + 3 * num_pieces + item, mask=exists, other=-1).to(tl.int64)
        here = exists[:, None] & in_width[None, :]
        x_row = tl.load(x + row[:, None] * D + cols[None, :], mask=here, other=0.0).to(real)
        total = tl.zeros([PIECES, WIDTH], real)
        if POWER and EDGE == 0:
            # Without edge terms every edge that leaves a row carries the same message.
            message = (tl.where(x_row <= 0.0, 0.0, x_row) if RELU else x_row) + EPS
            log_message = tl.log(tl.where(here, message, 1.0))[None, :, :]
        for first in range(0, tl.max(length).to(tl.int32), UNROLL):
            there = first + ahead < length[None, :]
            mask = there[:, :, None] & in_width[None, None, :]
            target = tl.load(indices + start[None, :] + first + ahead, mask=there, other=0).to(tl.int64)
            place = target[:, :, None] * D + cols[None, None, :]
            g = tl.load(grad + place, mask=mask, other=0.0).to(real)
            kept = tl.load(k + place, mask=mask, other=0.0)
            b = x_row[None, :, :]
            if EDGE > 0:
                e = tl.load(edges + start[None, :] + first + ahead, mask=there, other=0).to(tl.int64)
                b += _edge_term(edge, weight, e, there, mask, cols[None, None, :], D, K, EDGE, real)
            m = b
            if RELU:
                m = tl.where(b <= 0.0, 0.0, b)
            m += EPS
            if POWER:
                degree = tl.load(degree_ptr + target + 1, mask=there, other=1)
                degree -= tl.load(degree_ptr + target, mask=there, other=0)
                share = g / degree.to(real)[:, :, None]
                logs = log_message if EDGE == 0 else tl.log(tl.where(mask, m, 1.0))
                diff = tl.where(mask, logs - kept, 0.0)
                dm = share * tl.exp((t - 1.0) * diff)
                if NEED_EXPONENT:
                    d_t += tl.sum(share * tl.exp(kept) * diff * diff * _psi(t * diff, tl.exp(t * diff)), 0)
            else:
                out = tl.load(y + place, mask=mask, other=0.0)
                u = _gap(t, m, out)
                # Past its end a piece has g = 0 while longer pieces continue; the exponential must not overflow.
                a = g * tl.exp(tl.where(mask, u - kept, 0.0))
                dm = a
                if not SEMI:
                    dm = tl.where(a == 0.0, 0.0, a * (1.0 + u))
                if NEED_EXPONENT:
                    d_t += tl.sum(a * (m - out) * (m - out), 0)
            if RELU:
                dm = tl.where(b <= 0.0, 0.0, dm)
            dm = tl.where(mask, dm, 0.0)
            total += tl.sum(dm, 0)
            if NEED_EDGE:
                tl.store(d_edge + e[:, :, None] * D + cols[None, None, :], dm, mask=mask)
            if NEED_WEIGHT:
                # There is one piece, so its axis serves as that of the features.
                if EDGE == 2:
                    read = there[:, :, None] & (feature < K)
                    value = tl.load(edge + e[:, :, None] * K + feature, mask=read, other=0.0).to(real)
                else:
                    value = (tl.load(edge + e, mask=there, other=-1)[:, :, None] == feature).to(real)
                d_w += tl.sum(value * dm, 0)
        tl.store(dx + row[:, None] * D + cols[None, :], total, mask=here & (slot < 0)[:, None])
        tl.store(part + slot[:, None] * D + cols[None, :], total, mask=here & (slot >= 0)[:, None])
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    if NEED_EXPONENT:
        if PER_CHANNEL:
            tl.store(d_exponent + tl.program_id(0) * D + cols, tl.sum(d_t, 0), mask=in_width)
        else:
            tl.store(d_exponent + program, tl.sum(tl.sum(tl.where(in_width[None, :], d_t, 0.0), 1), 0))
    if NEED_WEIGHT:
        row = tl.arange(0, FEATURES)[:, None]
        place = (tl.program_id(0) * K + row) * D + cols[None, :]
        tl.store(d_weight + place, d_w, mask=(row < K) & in_width[None, :])


@triton.jit
def merge_backward(hubs, num_hubs, part, dx, D, SLOTS: tl.constexpr, WIDTH: tl.constexpr, real: tl.constexpr):
    """Add the gradients of the pieces of a split row."""
    hub = tl.program_id(0)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = cols < D
    row = tl.load(hubs + hub).to(tl.int64)
    if row >= 0:
        first = tl.load(hubs + num_hubs + hub).to(tl.int64)
        count = tl.load(hubs + 2 * num_hubs + hub).to(tl.int32)
        total = tl.zeros([WIDTH], real)
        for begin in range(0, count, SLOTS):
            number = begin + tl.arange(0, SLOTS)
            mask = (number < count)[:, None] & in_width[None, :]
            total += tl.sum(tl.load(part + (first + number)[:, None] * D + cols[None, :], mask=mask, other=0.0), 0)
        tl.store(dx + row * D + cols, total, mask=in_width)
