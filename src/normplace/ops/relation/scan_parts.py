"""Functions that the Triton kernels of the relations share.

A tile is rows × heads × channels, with its first axis within a thread. Exponents are in base 2, which the hardware
computes. ``EVEN`` means that no channel of a tile is padding, ``WHOLE`` that no row is missing; both avoid masks.
"""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from normplace.ops.rounding import mean_of, reciprocal_root

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# An exponent below any other, finite so that differences are defined.
LOWEST = tl.constexpr(-1e30)
# Upper limit of the root of eps: y is negligible compared with it, and its square is in range.
HIGHEST_ROOT = tl.constexpr(1e18)


@triton.jit
def join(top, total, top2, total2):
    """The sum of two sums, each stored as ``total · 2^top``."""
    best = tl.maximum(top, top2)
    return best, total * tl.exp2(top - best) + total2 * tl.exp2(top2 - best)


@triton.jit
def weights_of(weight, sequence, t, T, MASKED: tl.constexpr, MEAN: tl.constexpr, CAUSAL: tl.constexpr):
    """The factors of the sums of rows ``t``; 0 for a masked row."""
    inside = t < T
    if MASKED:
        return tl.load(weight + sequence * T + t, mask=inside, other=0.0)
    if MEAN:
        count = (t + 1 if CAUSAL else t * 0 + T).to(tl.float32)
        return tl.where(inside, 1.0 / count, 0.0)
    return tl.where(inside, 1.0, 0.0)


@triton.jit
def which_there(w, WHOLE: tl.constexpr):
    """Mask of the valid rows, from their weights."""
    if WHOLE:
        return tl.full(w.shape, 1, tl.int1)
    return w > 0.0


@triton.jit
def places(row, D, width, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets of the channels of rows."""
    head = tl.arange(0, HEADS)[None, :, None] * width
    return row[:, None, None] * D + head + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def live_channels(heads, width, HEADS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """Mask of the channels of a padded row, 1 × heads × channels."""
    if EVEN:
        return tl.full([1, HEADS, WIDTH], 1, tl.int1)
    return (tl.arange(0, HEADS)[None, :, None] < heads) & (tl.arange(0, WIDTH)[None, None, :] < width)


@triton.jit
def inverse_root(variance):
    """``1 / sqrt(variance)``; 0 for a variance of 0, nan for one that has overflowed."""
    root = tl.where(variance > 0.0, reciprocal_root(tl.where(variance > 0.0, variance, 1.0)), 0.0)
    return tl.where(variance == float("inf"), float("nan"), root)


@triton.jit
def values_of(x, row, there, D, width, live, HEADS: tl.constexpr, WIDTH: tl.constexpr, KEEP: tl.constexpr):
    """Rows in their own dtype."""
    # Keep rows that are read again in the cache; evict the others first.
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    mask = there[:, None, None] & live
    return tl.load(x + places(row, D, width, HEADS, WIDTH), mask=mask, other=0.0, eviction_policy=policy)


@triton.jit
def widened(value):
    """Values in float32. A shift converts bfloat16, the upper half of float32, in fewer instructions."""
    if value.dtype == tl.bfloat16:
        return (value.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def _less_first(value, x, row, there, D, heads, width, live, HEADS: tl.constexpr):
    """Rows minus their first channel, so that a constant row is exactly zero and a large mean costs no digits.

    Not needed in bfloat16, where a sum of equal values is exact.
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
    """Normalized rows times log2(e), and the statistics of the norm: mean and reciprocal deviation."""
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
    """Offsets of the statistics of the rows' heads, and their mask."""
    head = tl.arange(0, HEADS)[None, :]
    return row[:, None] * heads + head, (head < heads) & (row >= 0)[:, None]


@triton.jit
def known_exponents_of(
    value, x, means, scales, row, there, D, heads, width, live, NORM: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """Normalized rows times log2(e), from stored statistics, and the scales of the norm."""
    scale = tl.full([row.shape[0], HEADS], 1.0, tl.float32)
    if NORM:
        place, mask = places_of_statistics(row, heads, HEADS)
        mask = mask & there[:, None]
        scale = tl.load(scales + place, mask=mask, other=0.0)
        mean = tl.load(means + place, mask=mask, other=0.0)
        value = _less_first(value, x, row, there, D, heads, width, live, HEADS)
        # Multiplying before the subtraction would save an operation, but a constant row would not be exactly zero.
        value = tl.where(live, (value - mean[:, :, None]) * (scale * LOG2E)[:, :, None], 0.0)
    else:
        value = widened(value) * LOG2E
    return value, scale


@triton.jit
def through_norm(grad, out, scale, width, live, NORM: tl.constexpr):
    """The gradient of rows, from that of their exponents and the exponents ``out``."""
    if NORM:
        out *= LN2
        grad = tl.where(live, grad, 0.0)
        inner = tl.sum(grad * out, 2) / width
        grad = scale[:, :, None] * (grad - (tl.sum(grad, 2) / width)[:, :, None] - out * inner[:, :, None])
    return grad


@triton.jit
def carried_in(sums, tops, slot, D, width, live, STABLE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """The sums in a slot, 1 × heads × channels."""
    place = places(slot[None], D, width, HEADS, WIDTH)
    total = tl.load(sums + place, mask=live, other=0.0)
    top = total
    if STABLE:
        top = tl.load(tops + place, mask=live, other=LOWEST)
    return total, top


@triton.jit
def walked(exponent, factor, total, top, STABLE: tl.constexpr, REVERSE: tl.constexpr):
    """Cumulative sums over the rows of ``factor · 2^exponent`` plus the carry, and the new carry.

    Unless ``STABLE``, ``factor`` is this product itself.
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
    """The terms of the sums over keys: 2^v, or 1 if ``STABLE``; 0 for a masked key."""
    return tl.where(there[:, None, None] & live, tl.full(v.shape, 1.0, tl.float32) if STABLE else tl.exp2(v), 0.0)


@triton.jit
def summed(exponent, factor, total, top, STABLE: tl.constexpr):
    """The new carry of :func:`walked`, 1 × heads × channels."""
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

    To keep squares in range before a post-norm, y and ``root_eps`` are divided by 2^``LOWER``, and with ``DIVIDE`` by
    the largest y. ``EXACT`` is for eps = 0, where equal values must give exactly zero.
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
