"""What the Triton kernels of the scan are made of.

A tile is rows × heads × channels, its first axis within a thread. Exponents are of base 2, which is the base the
hardware has. ``EVEN`` says that no channel of a tile is padding, ``WHOLE`` that no row is missing: then nothing need be
masked.
"""
# Triton compiles these functions by its own rules, in which constant conditions decide what exists.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from normplace.ops.rounding import mean_of, reciprocal_root

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# An exponent lower than any, of which differences can be taken.
LOWEST = tl.constexpr(-1e30)
# A root of eps beside which a y with a norm is nothing, and whose square is in range.
HIGHEST_ROOT = tl.constexpr(1e18)


@triton.jit
def join(top, total, top2, total2):
    """Two sums, each kept as ``total · 2^top``, as one."""
    best = tl.maximum(top, top2)
    return best, total * tl.exp2(top - best) + total2 * tl.exp2(top2 - best)


@triton.jit
def weights_of(weight, sequence, t, T, MASKED: tl.constexpr, MEAN: tl.constexpr, CAUSAL: tl.constexpr):
    """What the sums of the rows ``t`` are multiplied by; 0 for one that is not there."""
    inside = t < T
    if MASKED:
        return tl.load(weight + sequence * T + t, mask=inside, other=0.0)
    if MEAN:
        count = (t + 1 if CAUSAL else t * 0 + T).to(tl.float32)
        return tl.where(inside, 1.0 / count, 0.0)
    return tl.where(inside, 1.0, 0.0)


@triton.jit
def which_there(w, WHOLE: tl.constexpr):
    """Which rows exist, by their weights."""
    if WHOLE:
        return tl.full(w.shape, 1, tl.int1)
    return w > 0.0


@triton.jit
def places(row, D, width, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the channels of rows lie."""
    head = tl.arange(0, HEADS)[None, :, None] * width
    return row[:, None, None] * D + head + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def live_channels(heads, width, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """1 × heads × channels: which of a padded row exist."""
    if EVEN:
        return tl.full([1, HEADS, WIDTH], 1, tl.int1)
    return (tl.arange(0, HEADS)[None, :, None] < heads) & (tl.arange(0, WIDTH)[None, None, :] < width)


@triton.jit
def inverse_root(variance):
    """``1 / sqrt(variance)``, and 0 of 0."""
    return tl.where(variance > 0.0, reciprocal_root(tl.where(variance > 0.0, variance, 1.0)), 0.0)


@triton.jit
def values_of(x, row, there, D, width, live, HEADS: tl.constexpr, WIDTH: tl.constexpr, KEEP: tl.constexpr):
    """Rows as they are."""
    # Rows to be read a second time stay in the cache, the others leave it first.
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    mask = there[:, None, None] & live
    return tl.load(x + places(row, D, width, HEADS, WIDTH), mask=mask, other=0.0, eviction_policy=policy)


@triton.jit
def widened(value):
    """Numbers in float32; those of bfloat16, which is its upper half, by a shift, in fewer instructions."""
    if value.dtype == tl.bfloat16:
        return (value.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def _less_first(value, x, row, there, D, heads, width, live, HEADS: tl.constexpr):
    """Rows less their first channel, so that a constant row is exactly zero and a large mean costs no digits.

    Not in bfloat16, where a sum of equal numbers is exact.
    """
    value = widened(value)
    if x.dtype.element_ty != tl.bfloat16:
        head = tl.arange(0, HEADS)[None, :]
        first = tl.load(x + row[:, None] * D + head * width, mask=there[:, None] & (head < heads), other=0.0)
        value = tl.where(live, value - first.to(tl.float32)[:, :, None], 0.0)
    return value


@triton.jit
def exponents_of(
    value, x, row, there, D, heads, width, eps, live, NORM: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """The rows after their norm, times log2(e), and the norm's statistics: mean and reciprocal deviation."""
    scale = tl.full([row.shape[0], HEADS], 1.0, tl.float32)
    mean = tl.zeros_like(scale)
    if NORM:
        value = _less_first(value, x, row, there, D, heads, width, live, HEADS)
        mean = mean_of(tl.sum(value, 2), width)
        value = tl.where(live, value - mean[:, :, None], 0.0)
        scale = inverse_root(tl.sum(value * value, 2) / width + eps)
        value *= (scale * LOG2E)[:, :, None]
    else:
        value = widened(value) * LOG2E
    return value, mean, scale


@triton.jit
def places_of_statistics(row, heads, HEADS: tl.constexpr):
    """Where the statistics of the heads of rows are kept, and which there are."""
    head = tl.arange(0, HEADS)[None, :]
    return row[:, None] * heads + head, (head < heads) & (row >= 0)[:, None]


@triton.jit
def known_exponents_of(
    value, x, means, scales, row, there, D, heads, width, live, NORM: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """The rows after their norm, times log2(e), by statistics taken before; and what it multiplied them by."""
    scale = tl.full([row.shape[0], HEADS], 1.0, tl.float32)
    if NORM:
        place, mask = places_of_statistics(row, heads, HEADS)
        mask = mask & there[:, None]
        scale = tl.load(scales + place, mask=mask, other=0.0)
        mean = tl.load(means + place, mask=mask, other=0.0)
        value = _less_first(value, x, row, there, D, heads, width, live, HEADS)
        # Products first would save an operation, and leave of a constant row the rounding of one of them.
        value = tl.where(live, (value - mean[:, :, None]) * (scale * LOG2E)[:, :, None], 0.0)
    else:
        value = widened(value) * LOG2E
    return value, scale


@triton.jit
def through_norm(grad, out, scale, width, live, NORM: tl.constexpr):
    """The gradient of rows, from that of their exponents and these, ``out``."""
    if NORM:
        out *= LN2
        grad = tl.where(live, grad, 0.0)
        inner = tl.sum(grad * out, 2) / width
        grad = scale[:, :, None] * (grad - (tl.sum(grad, 2) / width)[:, :, None] - out * inner[:, :, None])
    return grad


@triton.jit
def carried_in(sums, tops, slot, D, width, live, STABLE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """1 × heads × channels: the sums in a slot."""
    place = places(slot[None], D, width, HEADS, WIDTH)
    total = tl.load(sums + place, mask=live, other=0.0)
    top = total
    if STABLE:
        top = tl.load(tops + place, mask=live, other=LOWEST)
    return total, top


@triton.jit
def walked(exponent, factor, total, top, STABLE: tl.constexpr, REVERSE: tl.constexpr):
    """Sums over the rows of ``factor · 2^exponent``, those carried included, and what is carried on.

    Unless ``STABLE``, ``factor`` is that product itself.
    """
    if STABLE:
        own_top, own = tl.associative_scan(
            (tl.where(factor == 0.0, LOWEST, exponent), factor), 0, join, reverse=REVERSE
        )
        so_far_top, so_far = join(own_top, own, top, total)
        total, top = summed(exponent, factor, total, top, True)
        return so_far, so_far_top, total, top
    if factor.shape[0] == 1:
        total += factor
        return total, total, total, total
    so_far = tl.cumsum(factor, 0, reverse=REVERSE) + total
    total, top = summed(exponent, factor, total, top, False)
    return so_far, so_far, total, top


@triton.jit
def terms_of(v, there, live, STABLE: tl.constexpr):
    """What the sums over keys add up: 2^v, or 1 where that is left to them; 0 for a key that is not there."""
    return tl.where(there[:, None, None] & live, tl.full(v.shape, 1.0, tl.float32) if STABLE else tl.exp2(v), 0.0)


@triton.jit
def summed(exponent, factor, total, top, STABLE: tl.constexpr):
    """What :func:`walked` carries on, 1 × heads × channels."""
    if STABLE:
        exponent = tl.where(factor == 0.0, LOWEST, exponent)
        best = tl.maximum(tl.max(exponent, 0)[None, :, :], top)
        total = total * tl.exp2(top - best) + tl.sum(factor * tl.exp2(exponent - best), 0)[None, :, :]
        return total, best
    total += tl.sum(factor, 0)[None, :, :]
    return total, total


@triton.jit
def combined(
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
            root_eps = tl.where(root_eps > 0.0, tl.minimum(root_eps * tl.exp2(-shift), HIGHEST_ROOT), 0.0)
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
        scale = inverse_root(tl.sum(tl.sum(normed * normed, 2), 1) / D + root_eps * root_eps)
        normed *= scale[:, None, None]
    return z, gate, normed, scale
