"""The Triton kernels of the scan; :mod:`normplace.ops.relation.triton_scan` launches them.

The mathematics is that of :mod:`normplace.ops.relation.scan_reference`. A program holds a few whole rows, since a norm
needs them whole: a tile is rows × heads × channels, its first axis within a thread. Sums of chunks of time are left in
slots, one slot summed into the next by a kernel of its own, and taken up again. Exponents are of base 2, which is the
base the hardware has.

``EVEN`` says that no channel of a tile is padding, ``WHOLE`` that no row is missing: then nothing need be masked.
"""
# Triton compiles these functions by its own rules, in which constant conditions decide what exists.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# An exponent lower than any, of which differences can be taken.
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _join(top, total, top2, total2):
    best = tl.maximum(top, top2)
    return best, total * tl.exp2(top - best) + total2 * tl.exp2(top2 - best)


@triton.jit
def _weight(weight, sequence, t, T, MASKED: tl.constexpr, MEAN: tl.constexpr, CAUSAL: tl.constexpr):
    """What the sums of the rows ``t`` are multiplied by; 0 for one that is not there."""
    inside = t < T
    if MASKED:
        return tl.load(weight + sequence * T + t, mask=inside, other=0.0)
    if MEAN:
        count = (t + 1 if CAUSAL else t * 0 + T).to(tl.float32)
        return tl.where(inside, 1.0 / count, 0.0)
    return tl.where(inside, 1.0, 0.0)


@triton.jit
def _there(w, WHOLE: tl.constexpr):
    """Which rows exist, by their weights."""
    if WHOLE:
        return tl.full(w.shape, 1, tl.int1)
    return w > 0.0


@triton.jit
def _place(row, D, width, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    head = tl.arange(0, HEADS)[None, :, None] * width
    return row[:, None, None] * D + head + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def _live(heads, width, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """1 × heads × channels: which of a padded row exist."""
    if EVEN:
        return tl.full([1, HEADS, WIDTH], 1, tl.int1)
    return (tl.arange(0, HEADS)[None, :, None] < heads) & (tl.arange(0, WIDTH)[None, None, :] < width)


@triton.jit
def _inverse_root(variance):
    """``1 / sqrt(variance)``, and 0 of 0."""
    safe = tl.where(variance > 0.0, variance, 1.0)
    root = tl.rsqrt(safe)
    # The hardware's is approximate; one step of Newton's method gives its last digits.
    root *= 1.5 - 0.5 * (safe * root) * root
    return tl.where(variance > 0.0, root, 0.0)


@triton.jit
def _row_values(x, row, there, D, width, live, HEADS: tl.constexpr, WIDTH: tl.constexpr, KEEP: tl.constexpr):
    """Rows as they are, in float32."""
    # Rows to be read a second time stay in the cache, the others leave it first.
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    mask = there[:, None, None] & live
    return tl.load(x + _place(row, D, width, HEADS, WIDTH), mask=mask, other=0.0, eviction_policy=policy).to(tl.float32)


@triton.jit
def _exponent(
    x, row, there, D, heads, width, eps, live, NORM: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """The rows after their norm, times log2(e), what the norm took off them and what it multiplied the rest by."""
    value = _row_values(x, row, there, D, width, live, HEADS, WIDTH, KEEP)
    scale = tl.full([row.shape[0], HEADS], 1.0, tl.float32)
    centre = tl.zeros_like(scale)
    if NORM:
        # Less its first channel, so that a constant row is exactly zero; a sum of equal bfloat16 numbers is exact.
        if x.dtype.element_ty != tl.bfloat16:
            head = tl.arange(0, HEADS)[None, :]
            first = tl.load(x + row[:, None] * D + head * width, mask=there[:, None] & (head < heads), other=0.0)
            centre = first.to(tl.float32)
            value = tl.where(live, value - centre[:, :, None], 0.0)
        mean = tl.div_rn(tl.sum(value, 2), tl.zeros_like(scale) + width)
        value = tl.where(live, value - mean[:, :, None], 0.0)
        centre += mean
        scale = _inverse_root(tl.sum(value * value, 2) / width + eps)
        value *= (scale * LOG2E)[:, :, None]
    else:
        value *= LOG2E
    return value, centre, scale


@triton.jit
def _statistics(row, heads, HEADS: tl.constexpr):
    """Where the statistics of the heads of rows are kept, and which there are."""
    head = tl.arange(0, HEADS)[None, :]
    return row[:, None] * heads + head, (head < heads) & (row >= 0)[:, None]


@triton.jit
def _known_exponent(
    x, centres, scales, row, there, D, heads, width, live, NORM: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The rows after their norm, times log2(e), by statistics taken before; and what it multiplied them by."""
    value = _row_values(x, row, there, D, width, live, HEADS, WIDTH, KEEP)
    scale = tl.full([row.shape[0], HEADS], 1.0, tl.float32)
    if NORM:
        place, mask = _statistics(row, heads, HEADS)
        mask = mask & there[:, None]
        scale = tl.load(scales + place, mask=mask, other=0.0)
        factor = scale * LOG2E
        offset = -tl.load(centres + place, mask=mask, other=0.0) * factor
        value = tl.where(live, value * factor[:, :, None] + offset[:, :, None], 0.0)
    else:
        value *= LOG2E
    return value, scale


@triton.jit
def _through_norm(grad, out, scale, width, live, NORM: tl.constexpr):
    """The gradient of rows, from that of their exponents and these, ``out``."""
    if NORM:
        out *= LN2
        grad = tl.where(live, grad, 0.0)
        inner = tl.sum(grad * out, 2) / width
        grad = scale[:, :, None] * (grad - (tl.sum(grad, 2) / width)[:, :, None] - out * inner[:, :, None])
    return grad


@triton.jit
def _carried(sums, tops, slot, D, width, live, STABLE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """1 × heads × channels: the sums in a slot."""
    place = _place(slot[None], D, width, HEADS, WIDTH)
    total = tl.load(sums + place, mask=live, other=0.0)
    top = total
    if STABLE:
        top = tl.load(tops + place, mask=live, other=LOWEST)
    return total, top


@triton.jit
def _walked(exponent, factor, total, top, STABLE: tl.constexpr, REVERSE: tl.constexpr):
    """Sums over the rows of ``factor · 2^exponent``, those carried included, and what is carried on.

    Unless ``STABLE``, ``factor`` is that product itself.
    """
    if STABLE:
        exponent = tl.where(factor == 0.0, LOWEST, exponent)
        own_top, own = tl.associative_scan((exponent, factor), 0, _join, reverse=REVERSE)
        so_far_top, so_far = _join(own_top, own, top, total)
        best = tl.maximum(tl.max(exponent, 0)[None, :, :], top)
        total = total * tl.exp2(top - best) + tl.sum(factor * tl.exp2(exponent - best), 0)[None, :, :]
        return so_far, so_far_top, total, best
    if factor.shape[0] == 1:
        total += factor
        return total, total, total, total
    so_far = tl.cumsum(factor, 0, reverse=REVERSE) + total
    total += tl.sum(factor, 0)[None, :, :]
    return so_far, so_far, total, total


@triton.jit
def _keys(v, there, live, STABLE: tl.constexpr):
    """What the sums over keys add up: 2^v, or 1 where that is left to them; 0 for a key that is not there."""
    return tl.where(there[:, None, None] & live, tl.full(v.shape, 1.0, tl.float32) if STABLE else tl.exp2(v), 0.0)


@triton.jit
def _summed(exponent, factor, total, top, STABLE: tl.constexpr):
    """What :func:`_walked` carries on, 1 × heads × channels."""
    if STABLE:
        exponent = tl.where(factor == 0.0, LOWEST, exponent)
        best = tl.maximum(tl.max(exponent, 0)[None, :, :], top)
        total = total * tl.exp2(top - best) + tl.sum(factor * tl.exp2(exponent - best), 0)[None, :, :]
        return total, best
    total += tl.sum(factor, 0)[None, :, :]
    return total, total


@triton.jit
def _combined(
    u, total, top, w, D, root_eps, live, STABLE: tl.constexpr, POST: tl.constexpr, LOWER: tl.constexpr,
    DIVIDE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """z, 2^(u - shift) or its exponent, and the norm of z with its scale.

    To keep the square of a y with a norm in range, y and ``root_eps`` come divided by 2^``LOWER``, and with
    ``DIVIDE`` are divided by the largest y.
    ``EXACT`` is for an eps of 0, where numbers that are all equal must give exactly zero.
    """
    scale = w
    w = w[:, None, None]
    if STABLE:
        exponent = u + top
        gate = u
        if POST:
            shift = tl.max(tl.max(tl.where(live, exponent, LOWEST), 2), 1)
            exponent -= shift[:, None, None]
            gate = u - shift[:, None, None]
            root_eps = tl.where(root_eps > 0.0, root_eps * tl.exp2(-shift), 0.0)
        z = tl.where(live & (w > 0.0), tl.exp2(exponent) * (total * w), 0.0)
    else:
        gate = tl.exp2(u - LOWER)
        z = tl.where(live, gate * (total * w), 0.0)
        if POST and DIVIDE:
            largest = tl.max(tl.max(z, 2), 1)
            inverse = 1.0 / tl.where(largest > 0.0, largest, 1.0)
            z *= inverse[:, None, None]
            gate *= inverse[:, None, None]
            root_eps *= inverse
    normed = z
    if POST:
        if EXACT:
            normed = tl.where(live, z - tl.max(tl.max(z, 2), 1)[:, None, None], 0.0)
        mean = tl.sum(tl.sum(normed, 2), 1) / D
        normed = tl.where(live, normed - mean[:, None, None], 0.0)
        scale = _inverse_root(tl.sum(tl.sum(normed * normed, 2), 1) / D + root_eps * root_eps)
        normed *= scale[:, None, None]
    return z, gate, normed, scale


@triton.jit
def key_sums(
    b, weight, sums, tops, centres, scales, T, D, heads, width, eps, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sum 2^v over a chunk of time, into the slot after it, and keep the statistics of its rows."""
    sequence, chunk = tl.program_id(0).to(tl.int64) // chunks, tl.program_id(0) % chunks
    live = _live(heads, width, HEADS, WIDTH, EVEN)
    total = tl.zeros([1, HEADS, WIDTH], tl.float32)
    top = tl.full([1, HEADS, WIDTH], LOWEST, tl.float32)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        t = chunk * CHUNK + begin + tl.arange(0, ROWS)
        row = sequence * T + t
        there = _there(_weight(weight, sequence, t, T, MASKED, False, True), WHOLE)
        v, centre, scale = _exponent(b, row, there, D, heads, width, eps, live, NORM, HEADS, WIDTH, True)
        total, top = _summed(v, _keys(v, there, live, STABLE), total, top, STABLE)
        if NORM:
            place, mask = _statistics(row, heads, HEADS)
            mask = mask & there[:, None]
            tl.store(centres + place, centre, mask=mask)
            tl.store(scales + place, scale, mask=mask)
    place = _place((sequence * (chunks + 1) + chunk + 1)[None], D, width, HEADS, WIDTH)
    tl.store(sums + place, total, mask=live)
    if STABLE:
        tl.store(tops + place, top, mask=live)


@triton.jit
def accumulate(
    sums, tops, D, chunks, STABLE: tl.constexpr, REVERSE: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr
):
    """Sum each slot into the next, or each into the one before; the first of them is empty."""
    sequence = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    edge = sequence * (chunks + 1) + (chunks if REVERSE else 0)
    tl.store(sums + edge * D + cols, tl.zeros([WIDTH], tl.float32), mask=cols < D)
    total = tl.zeros([1, WIDTH], tl.float64)
    top = tl.full([1, WIDTH], LOWEST, tl.float32)
    if STABLE:
        total = tl.zeros([1, WIDTH], tl.float32)
        tl.store(tops + edge * D + cols, tl.full([WIDTH], LOWEST, tl.float32), mask=cols < D)
    last = (tl.arange(0, SLOTS) == SLOTS - 1)[:, None]
    for begin in range(0, chunks, SLOTS):
        number = begin + tl.arange(0, SLOTS)
        slot = sequence * (chunks + 1) + (chunks - 1 - number if REVERSE else number + 1)
        mask = (number < chunks)[:, None] & (cols < D)[None, :]
        place = slot[:, None] * D + cols[None, :]
        own = tl.load(sums + place, mask=mask, other=0.0)
        if STABLE:
            own_top = tl.load(tops + place, mask=mask, other=LOWEST)
            own_top, own = tl.associative_scan((own_top, own), 0, _join)
            own_top, own = _join(own_top, own, top, total)
            tl.store(sums + place, own, mask=mask)
            tl.store(tops + place, own_top, mask=mask)
            total = tl.sum(tl.where(last, own, 0.0), 0)[None, :]
            top = tl.sum(tl.where(last, own_top, 0.0), 0)[None, :]
        else:
            # There are few of these sums, and double precision keeps their error from growing with the length.
            own = own.to(tl.float64)
            tl.store(sums + place, (tl.cumsum(own, 0) + total).to(tl.float32), mask=mask)
            total += tl.sum(own, 0)[None, :]


@triton.jit
def relate(
    a, b, weight, sums, tops, centres, scales, y, T, D, heads, width, eps, root_eps, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, POST: tl.constexpr, MASKED: tl.constexpr, MEAN: tl.constexpr,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, LOWER: tl.constexpr, DIVIDE: tl.constexpr, EXACT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The relation of a chunk of time, given the sums before it."""
    # From the end, whose rows of b are the ones still in the cache.
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, chunk = number.to(tl.int64) // chunks, number % chunks
    live = _live(heads, width, HEADS, WIDTH, EVEN)
    slot = sequence * (chunks + 1) + (chunk if CAUSAL else chunks)
    total, top = _carried(sums, tops, slot, D, width, live, STABLE, HEADS, WIDTH)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        t = chunk * CHUNK + begin + tl.arange(0, ROWS)
        row = sequence * T + t
        w = _weight(weight, sequence, t, T, MASKED, MEAN, CAUSAL)
        there = _there(w, WHOLE)
        u, _, _ = _exponent(a, row, there, D, heads, width, eps, live, NORM, HEADS, WIDTH, False)
        so_far, so_far_top = total, top
        if CAUSAL:
            v, _ = _known_exponent(b, centres, scales, row, there, D, heads, width, live, NORM, HEADS, WIDTH, False)
            so_far, so_far_top, total, top = _walked(v, _keys(v, there, live, STABLE), total, top, STABLE, False)
        _, _, out, _ = _combined(u, so_far, so_far_top, w, D, root_eps, live, STABLE, POST, LOWER, DIVIDE, EXACT)
        mask = _there(tl.where(t < T, 1.0, 0.0), WHOLE)[:, None, None] & live
        tl.store(y + _place(row, D, width, HEADS, WIDTH), out, mask=mask, eviction_policy="evict_first")


@triton.jit
def query_gradients(
    grad, a, b, weight, sums, tops, centres, scales, da, kept, exponents, later, later_tops,
    T, D, heads, width, eps, root_eps, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, POST: tl.constexpr, MASKED: tl.constexpr, MEAN: tl.constexpr,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, LOWER: tl.constexpr, DIVIDE: tl.constexpr, EXACT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of a for a chunk of time, q of each row, and the sum of q over the chunk into its own slot."""
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, chunk = number.to(tl.int64) // chunks, number % chunks
    live = _live(heads, width, HEADS, WIDTH, EVEN)
    slot = sequence * (chunks + 1) + (chunk if CAUSAL else chunks)
    total, top = _carried(sums, tops, slot, D, width, live, STABLE, HEADS, WIDTH)
    own = tl.zeros([1, HEADS, WIDTH], tl.float32)
    own_top = tl.full([1, HEADS, WIDTH], LOWEST, tl.float32)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        t = chunk * CHUNK + begin + tl.arange(0, ROWS)
        row = sequence * T + t
        w = _weight(weight, sequence, t, T, MASKED, MEAN, CAUSAL)
        there = _there(w, WHOLE)
        u, _, u_scale = _exponent(a, row, there, D, heads, width, eps, live, NORM, HEADS, WIDTH, False)
        so_far, so_far_top = total, top
        if CAUSAL:
            v, _ = _known_exponent(b, centres, scales, row, there, D, heads, width, live, NORM, HEADS, WIDTH, True)
            so_far, so_far_top, total, top = _walked(v, _keys(v, there, live, STABLE), total, top, STABLE, False)
        z, gate, normed, scale = _combined(
            u, so_far, so_far_top, w, D, root_eps, live, STABLE, POST, LOWER, DIVIDE, EXACT
        )
        g = _row_values(grad, row, there, D, width, live, HEADS, WIDTH, False)
        if POST:
            mean = tl.sum(tl.sum(g, 2), 1) / D
            inner = tl.sum(tl.sum(g * normed, 2), 1) / D
            g = scale[:, None, None] * (g - mean[:, None, None] - normed * inner[:, None, None])
            g = tl.where(live, g, 0.0)
        place = _place(row, D, width, HEADS, WIDTH)
        mask = _there(tl.where(t < T, 1.0, 0.0), WHOLE)[:, None, None] & live
        through = _through_norm(g * z, u, u_scale, width, live, NORM)
        tl.store(da + place, through, mask=mask, eviction_policy="evict_first")
        q = g * w[:, None, None] if STABLE else g * w[:, None, None] * gate
        own, own_top = _summed(gate, q, own, own_top, STABLE)
        if CAUSAL:
            tl.store(kept + place, q, mask=mask)
            if STABLE:
                tl.store(exponents + place, gate, mask=mask)
    place = _place((sequence * (chunks + 1) + chunk)[None], D, width, HEADS, WIDTH)
    tl.store(later + place, own, mask=live)
    if STABLE:
        tl.store(later_tops + place, own_top, mask=live)


@triton.jit
def key_gradients(
    b, weight, centres, scales, kept, exponents, later, later_tops, db, T, D, heads, width, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of b for a chunk of time, given q of its rows and the sums of q after it."""
    sequence, chunk = tl.program_id(0).to(tl.int64) // chunks, tl.program_id(0) % chunks
    live = _live(heads, width, HEADS, WIDTH, EVEN)
    slot = sequence * (chunks + 1) + (chunk + 1 if CAUSAL else 0)
    total, top = _carried(later, later_tops, slot, D, width, live, STABLE, HEADS, WIDTH)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        t = (chunk + 1) * CHUNK - begin - ROWS + tl.arange(0, ROWS)
        row = sequence * T + t
        there = _there(_weight(weight, sequence, t, T, MASKED, False, True), WHOLE)
        v, scale = _known_exponent(b, centres, scales, row, there, D, heads, width, live, NORM, HEADS, WIDTH, False)
        after, after_top = total, top
        if CAUSAL:
            q = _row_values(kept, row, there, D, width, live, HEADS, WIDTH, False)
            gate = v
            if STABLE:
                gate = _row_values(exponents, row, there, D, width, live, HEADS, WIDTH, False)
            after, after_top, total, top = _walked(gate, q, total, top, STABLE, True)
        dv = tl.where(there[:, None, None] & live, tl.exp2(v + after_top if STABLE else v) * after, 0.0)
        mask = _there(tl.where(t < T, 1.0, 0.0), WHOLE)[:, None, None] & live
        through = _through_norm(dv, v, scale, width, live, NORM)
        tl.store(db + _place(row, D, width, HEADS, WIDTH), through, mask=mask, eviction_policy="evict_first")
