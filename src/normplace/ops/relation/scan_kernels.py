"""Triton kernels of the scan, launched by :mod:`normplace.ops.relation.triton_scan`.

They compute what :mod:`normplace.ops.relation.scan_reference` defines. A program processes a chunk of time, a few whole
rows at a time because a norm needs whole rows. One kernel writes the sum of each chunk to a slot, a second accumulates
the slots, and a third reads them.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from normplace.ops.relation.scan_parts import (
    LOWEST,
    carried_in,
    combined,
    exponents_of,
    join,
    known_exponents_of,
    live_channels,
    places,
    places_of_statistics,
    summed,
    terms_of,
    through_norm,
    values_of,
    walked,
    weights_of,
    which_there,
    widened,
)


@triton.jit
def key_sums(
    b, weight, sums, tops, means, scales, T, D, heads, width, eps, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    MASKED: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sum 2^v over a chunk of time into the slot after it, and store the statistics of its rows."""
    sequence, chunk = tl.program_id(0).to(tl.int64) // chunks, tl.program_id(0) % chunks
    live = live_channels(heads, width, HEADS, WIDTH, EVEN)
    total = tl.zeros([1, HEADS, WIDTH], tl.float32)
    top = tl.full([1, HEADS, WIDTH], LOWEST, tl.float32)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        # Backward, so that the rows that the next kernel reads first are still in the cache.
        t = (chunk + 1) * CHUNK - begin - ROWS + tl.arange(0, ROWS)
        row = sequence * T + t
        there = which_there(weights_of(weight, sequence, t, T, MASKED, False, True), WHOLE)
        key = values_of(b, row, there, D, width, live, HEADS, WIDTH, True)
        v, mean, scale = exponents_of(key, b, row, there, D, heads, width, eps, live, NORM, HEADS)
        total, top = summed(v, terms_of(v, there, live, STABLE), total, top, STABLE)
        if NORM:
            place, mask = places_of_statistics(row, heads, HEADS)
            mask = mask & there[:, None]
            tl.store(means + place, mean, mask=mask)
            tl.store(scales + place, scale, mask=mask)
    place = places((sequence * (chunks + 1) + chunk + 1)[None], D, width, HEADS, WIDTH)
    tl.store(sums + place, total, mask=live)
    if STABLE:
        tl.store(tops + place, top, mask=live)


@triton.jit
def accumulate(
    sums, tops, D, chunks, STABLE: tl.constexpr, REVERSE: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr
):
    """Cumulative sums of the slots, forward or backward; the first slot is empty."""
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
            own_top, own = tl.associative_scan((own_top, own), 0, join)
            own_top, own = join(own_top, own, top, total)
            tl.store(sums + place, own, mask=mask)
            tl.store(tops + place, own_top, mask=mask)
            total = tl.sum(tl.where(last, own, 0.0), 0)[None, :]
            top = tl.sum(tl.where(last, own_top, 0.0), 0)[None, :]
        else:
            # There are few of these sums; float64 keeps their error independent of the length.
            own = own.to(tl.float64)
            tl.store(sums + place, (tl.cumsum(own, 0) + total).to(tl.float32), mask=mask)
            total += tl.sum(own, 0)[None, :]


@triton.jit
def relate(
    a, b, weight, sums, tops, means, scales, y, T, D, heads, width, eps, root_eps, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    MASKED: tl.constexpr, WHOLE: tl.constexpr, CAUSAL: tl.constexpr, POST: tl.constexpr, MEAN: tl.constexpr,
    LOWER: tl.constexpr, DIVIDE: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The relation of a chunk of time, from the sums before it."""
    # From the end, whose rows of b are still in the cache.
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, chunk = number.to(tl.int64) // chunks, number % chunks
    live = live_channels(heads, width, HEADS, WIDTH, EVEN)
    slot = sequence * (chunks + 1) + (chunk if CAUSAL else chunks)
    total, top = carried_in(sums, tops, slot, D, width, live, STABLE, HEADS, WIDTH)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        t = chunk * CHUNK + begin + tl.arange(0, ROWS)
        row = sequence * T + t
        w = weights_of(weight, sequence, t, T, MASKED, MEAN, CAUSAL)
        there = which_there(w, WHOLE)
        query = values_of(a, row, there, D, width, live, HEADS, WIDTH, False)
        key = query
        if CAUSAL:
            key = values_of(b, row, there, D, width, live, HEADS, WIDTH, False)
        if STAGES == 1:  # issue both loads before the first is used
            tl.debug_barrier()
        so_far, so_far_top = total, top
        if CAUSAL:
            v, _ = known_exponents_of(key, b, means, scales, row, there, D, heads, width, live, NORM, HEADS)
            so_far, so_far_top, total, top = walked(v, terms_of(v, there, live, STABLE), total, top, STABLE, False)
        u, _, _ = exponents_of(query, a, row, there, D, heads, width, eps, live, NORM, HEADS)
        _, _, out, _ = combined(u, so_far, so_far_top, w, D, root_eps, live, STABLE, POST, LOWER, DIVIDE, EXACT)
        mask = which_there(tl.where(t < T, 1.0, 0.0), WHOLE)[:, None, None] & live
        tl.store(y + places(row, D, width, HEADS, WIDTH), out, mask=mask, eviction_policy="evict_first")


@triton.jit
def query_gradients(
    grad, a, b, weight, sums, tops, means, scales, da, kept, exponents, later, later_tops,
    T, D, heads, width, eps, root_eps, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    MASKED: tl.constexpr, WHOLE: tl.constexpr, CAUSAL: tl.constexpr, POST: tl.constexpr, MEAN: tl.constexpr,
    LOWER: tl.constexpr, DIVIDE: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of a for a chunk of time, q of each row, and the sum of q over the chunk into its slot."""
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, chunk = number.to(tl.int64) // chunks, number % chunks
    live = live_channels(heads, width, HEADS, WIDTH, EVEN)
    slot = sequence * (chunks + 1) + (chunk if CAUSAL else chunks)
    total, top = carried_in(sums, tops, slot, D, width, live, STABLE, HEADS, WIDTH)
    own = tl.zeros([1, HEADS, WIDTH], tl.float32)
    own_top = tl.full([1, HEADS, WIDTH], LOWEST, tl.float32)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        t = chunk * CHUNK + begin + tl.arange(0, ROWS)
        row = sequence * T + t
        w = weights_of(weight, sequence, t, T, MASKED, MEAN, CAUSAL)
        there = which_there(w, WHOLE)
        query = values_of(a, row, there, D, width, live, HEADS, WIDTH, False)
        g = values_of(grad, row, there, D, width, live, HEADS, WIDTH, False)
        key = query
        if CAUSAL:
            key = values_of(b, row, there, D, width, live, HEADS, WIDTH, True)
        if STAGES == 1:
            tl.debug_barrier()
        g = widened(g)
        so_far, so_far_top = total, top
        if CAUSAL:
            v, _ = known_exponents_of(key, b, means, scales, row, there, D, heads, width, live, NORM, HEADS)
            so_far, so_far_top, total, top = walked(v, terms_of(v, there, live, STABLE), total, top, STABLE, False)
        u, _, u_scale = exponents_of(query, a, row, there, D, heads, width, eps, live, NORM, HEADS)
        z, gate, normed, scale = combined(
            u, so_far, so_far_top, w, D, root_eps, live, STABLE, POST, LOWER, DIVIDE, EXACT
        )
        if POST:
            mean = tl.sum(tl.sum(g, 2), 1) / D
            inner = tl.sum(tl.sum(g * normed, 2), 1) / D
            g = scale[:, None, None] * (g - mean[:, None, None] - normed * inner[:, None, None])
            g = tl.where(live, g, 0.0)
        place = places(row, D, width, HEADS, WIDTH)
        mask = which_there(tl.where(t < T, 1.0, 0.0), WHOLE)[:, None, None] & live
        through = through_norm(g * z, u, u_scale, width, live, NORM)
        tl.store(da + place, through, mask=mask, eviction_policy="evict_first")
        q = g * w[:, None, None] if STABLE else g * w[:, None, None] * gate
        own, own_top = summed(gate, q, own, own_top, STABLE)
        if CAUSAL:
            tl.store(kept + place, q, mask=mask)
            if STABLE:
                tl.store(exponents + place, gate, mask=mask)
    place = places((sequence * (chunks + 1) + chunk)[None], D, width, HEADS, WIDTH)
    tl.store(later + place, own, mask=live)
    if STABLE:
        tl.store(later_tops + place, own_top, mask=live)


@triton.jit
def key_gradients(
    b, weight, means, scales, kept, exponents, later, later_tops, db, T, D, heads, width, chunks,
    NORM: tl.constexpr, STABLE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    MASKED: tl.constexpr, WHOLE: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of b for a chunk of time, from q of its rows and the sums of q after it."""
    sequence, chunk = tl.program_id(0).to(tl.int64) // chunks, tl.program_id(0) % chunks
    live = live_channels(heads, width, HEADS, WIDTH, EVEN)
    slot = sequence * (chunks + 1) + (chunk + 1 if CAUSAL else 0)
    total, top = carried_in(later, later_tops, slot, D, width, live, STABLE, HEADS, WIDTH)
    for begin in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        t = (chunk + 1) * CHUNK - begin - ROWS + tl.arange(0, ROWS)
        row = sequence * T + t
        there = which_there(weights_of(weight, sequence, t, T, MASKED, False, True), WHOLE)
        key = values_of(b, row, there, D, width, live, HEADS, WIDTH, False)
        v, scale = known_exponents_of(key, b, means, scales, row, there, D, heads, width, live, NORM, HEADS)
        after, after_top = total, top
        if CAUSAL:
            q = widened(values_of(kept, row, there, D, width, live, HEADS, WIDTH, False))
            gate = v
            if STABLE:
                gate = values_of(exponents, row, there, D, width, live, HEADS, WIDTH, False)
            after, after_top, total, top = walked(gate, q, total, top, STABLE, True)
        dv = tl.where(there[:, None, None] & live, tl.exp2(v + after_top if STABLE else v) * after, 0.0)
        mask = which_there(tl.where(t < T, 1.0, 0.0), WHOLE)[:, None, None] & live
        through = through_norm(dv, v, scale, width, live, NORM)
        tl.store(db + places(row, D, width, HEADS, WIDTH), through, mask=mask, eviction_policy="evict_first")
