"""Generalized aggregation on a CPU, compiled with numba: one pass over the edges, no temporary of their size.

The mathematics is that of :mod:`normplace.ops.aggregate.reference`, with the softmax taken online. Rows are shared out
among threads, the backward pass walks the edges that leave each node, and sums over the whole graph are kept per block
of rows: no two threads write to one place and the result does not depend on how many there are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from normplace.ops.aggregate.neighbours import Half
from normplace.ops.aggregate.reference import PSI_NEAR, PSI_SERIES, Grads, Needs, Rule

# Blocks of about equal numbers of edges; fixed, so that sums over blocks are the same for any number of threads.
BLOCKS = 32
NONE, DENSE, LINEAR, TABLE = range(4)
MODES = {"none": NONE, "dense": DENSE, "linear": LINEAR, "table": TABLE}

compiled = functools.partial(numba.njit, nogil=True, error_model="numpy", fastmath={"contract"})
inlined = compiled(inline="always")


# Added to a float32 of moderate size, it rounds it to a whole number and leaves that number in the last bits.
ROUNDER = np.float32(1.5 * 2**23)


@inlined
def _exp32_series(f):
    """The exponential by its Taylor series, on |f| <= log(2)/2."""
    s = np.float32(1 / 5040)
    s = s * f + np.float32(1 / 720)
    s = s * f + np.float32(1 / 120)
    s = s * f + np.float32(1 / 24)
    s = s * f + np.float32(1 / 6)
    s = s * f + np.float32(0.5)
    s = s * f + np.float32(1.0)
    return s * f + np.float32(1.0)


@inlined
def weight32(x):
    """The exponential of a float32 that is negative or hardly positive, in few operations, all of which vectorize."""
    low = np.float32(-87.0)
    rounded = max(x, low) * np.float32(1.44269504) + ROUNDER
    n = rounded - ROUNDER
    s = _exp32_series(max(x, low) - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4))
    bits = np.float32(s).view(np.int32) + (np.float32(rounded).view(np.int32) << 23)
    return np.int32(bits).view(np.float32) if x > low or x != x else np.float32(0.0)


@inlined
def exp32(x):
    """The exponential of any float32 in operations that vectorize."""
    x = min(max(x, np.float32(-104.0)), np.float32(89.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    s = _exp32_series(x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4))
    # In two factors, since 2^n alone overflows before the product does and underflows before it is gone.
    half = np.int32(n) >> 1
    low = np.int32((half + 127) << 23).view(np.float32)
    high = np.int32((np.int32(n) - half + 127) << 23).view(np.float32)
    return s * low * high


@inlined
def log32(x):
    """The logarithm of a positive float32, as 2 artanh((f - 1) / (f + 1)) with f within a factor √2 of 1."""
    bits = np.float32(x).view(np.int32)
    # The exponent that leaves a mantissa between √½ and √2.
    n = (bits - 0x3F3504F3) >> 23
    f = np.int32(bits - (n << 23)).view(np.float32)
    s = (f - np.float32(1.0)) / (f + np.float32(1.0))
    q = s * s
    r = np.float32(2 / 9)
    r = r * q + np.float32(2 / 7)
    r = r * q + np.float32(2 / 5)
    r = r * q + np.float32(2 / 3)
    r = r * q + np.float32(2.0)
    e = np.float32(n)
    found = r * s + e * np.float32(-2.12194440e-4) + e * np.float32(0.693359375)
    return found if x > np.float32(0.0) else np.float32(np.nan)


@inlined
def exp64(x):
    """The exponential of a float64."""
    return math.exp(x)


@inlined
def log64(x):
    """The logarithm of a float64."""
    return math.log(x)


class Kernels(NamedTuple):
    """The compiled passes for one dtype."""

    forward: Callable[..., None]
    backward: Callable[..., None]


@functools.cache
def kernels(dtype: np.dtype) -> Kernels:
    """Compile the passes for float32 or float64; the inner loops run over channels, and vectorize."""
    exp, weigh, log = (exp32, weight32, log32) if dtype == np.float32 else (exp64, exp64, log64)
    real = dtype.type
    zero, one, half, near = real(0), real(1), real(0.5), real(PSI_NEAR)
    series = tuple(real(c) for c in PSI_SERIES)

    @compiled
    def before(x, j, edge, ids, weight, e, mode, out):
        """``x_j + e_ij`` of one edge."""
        if mode == NONE:
            for d in range(len(out)):
                out[d] = x[j, d]
        elif mode == DENSE:
            for d in range(len(out)):
                out[d] = x[j, d] + edge[e, d]
        elif mode == LINEAR:
            for d in range(len(out)):
                out[d] = x[j, d]
            for f in range(edge.shape[1]):
                value = edge[e, f]
                for d in range(len(out)):
                    out[d] += value * weight[f, d]
        else:
            row = ids[e]
            for d in range(len(out)):
                out[d] = x[j, d] + weight[row, d]

    @inlined
    def shrink(u, ex):
        """``(exp(u) - 1) / u`` for u <= 0, given exp(u)."""
        # Kahan's quotient near zero, where exp(u) - 1 has lost digits but its error divides out.
        return (one if ex == one else (ex - one) / log(ex)) if u > -half else (ex - one) / u

    @compiled
    def softmax_step(v, t, c, s, w):
        for d in range(len(v)):
            diff = v[d] - c[d]
            u = zero if diff == zero else t * diff
            ex = weigh(-abs(u))
            up = u > zero
            w[d] = ex * (w[d] - s[d] * diff) if up else w[d] + ex * diff
            s[d] = s[d] * ex + one if up else s[d] + ex
            c[d] = v[d] if up else c[d]

    @compiled
    def power_step(v, p, n, c, s, w):
        for d in range(len(v)):
            diff = v[d] - c[d]
            u = p * diff
            ex = weigh(-abs(u))
            up = u > zero
            ratio = shrink(-abs(u), ex)
            w[d] = ex * w[d] - n * diff * ratio if up else w[d] + diff * ratio
            s[d] = s[d] * ex + one if up else s[d] + ex
            c[d] = v[d] if up else c[d]

    @compiled
    def forward(rows, first, last, x, t, edge, ids, weight, indptr, indices, edges, y, k, is_power, mode, relu, eps):
        width = x.shape[1]
        v, c, s, w = np.empty(width, real), np.empty(width, real), np.empty(width, real), np.empty(width, real)
        floor = zero if relu else real(-np.inf)
        for position in range(first, last):
            i = rows[position]
            start, stop = indptr[i], indptr[i + 1]
            if start == stop:
                y[i, :] = zero
                k[i, :] = zero
                continue
            for place in range(start, stop):
                before(x, indices[place], edge, ids, weight, edges[place], mode, v)
                for d in range(width):
                    v[d] = (v[d] if v[d] > floor or v[d] != v[d] else floor) + eps
                if is_power:
                    for d in range(width):
                        v[d] = log(v[d])
                if place == start:
                    for d in range(width):
                        c[d], s[d], w[d] = v[d], one, zero
                elif is_power:
                    power_step(v, t, real(place - start), c, s, w)
                else:
                    softmax_step(v, t, c, s, w)
            n = real(stop - start)
            if is_power:
                for d in range(width):
                    mean, excess = s[d] / n, w[d] / n
                    lift = one + t * excess
                    ratio = one if lift == one else np.log(lift) / (lift - one)
                    k[i, d] = c[d] + (np.log(mean) / t if mean < half else excess * ratio)
                    y[i, d] = np.exp(k[i, d])
            else:
                for d in range(width):
                    lift = w[d] / s[d]
                    y[i, d] = c[d] + lift
                    diff = c[d] - y[i, d]
                    k[i, d] = np.log(s[d]) + (zero if diff == zero else t * diff)

    @compiled
    def softmax_back(b, g, y, k, t, relu, semi, eps, dm, dt):
        for d in range(len(b)):
            m = (max(b[d], zero) if relu else b[d]) + eps
            diff = m - y[d]
            u = zero if diff == zero else t * diff
            a = g[d] * weigh(u - k[d])
            slope = a if semi or a == zero else a * (one + u)
            dm[d] = zero if relu and b[d] <= zero else slope
            dt[d] += a * diff * diff

    @compiled
    def power_back(b, g, k, p, n, relu, eps, need, dm, dp):
        share = one / n
        for d in range(len(b)):
            m = (max(b[d], zero) if relu else b[d]) + eps
            diff = log(m) - k[d]
            slope = g[d] * share * exp((p - one) * diff)
            dm[d] = zero if relu and b[d] <= zero else slope
            if need:
                u = p * diff
                near_zero = zero
                for coefficient in series:
                    near_zero = near_zero * u + coefficient
                ex = exp(u)
                weight = near_zero if abs(u) < near else (ex - (ex - one) / u) / u
                dp[d] += g[d] * share * exp(k[d]) * diff * diff * weight

    @compiled
    def backward(
        chosen, first, last, grad, x, t, edge, ids, weight, indptr, indices, edges, degree_ptr, y, k,
        dx, d_edge, d_weight, d_exponent, is_power, mode, relu, semi, eps, need_exponent,
    ):  # fmt: skip
        width = x.shape[1]
        b, dm, dt = np.empty(width, real), np.empty(width, real), np.zeros(width, real)
        for j in range(first, last):
            for place in range(indptr[j], indptr[j + 1]):
                i, e = indices[place], edges[place]
                if len(chosen) and not chosen[i]:
                    continue
                before(x, j, edge, ids, weight, e, mode, b)
                if is_power:
                    n = real(degree_ptr[i + 1] - degree_ptr[i])
                    power_back(b, grad[i], k[i], t, n, relu, eps, need_exponent, dm, dt)
                else:
                    softmax_back(b, grad[i], y[i], k[i], t, relu, semi, eps, dm, dt)
                for d in range(width):
                    dx[j, d] += dm[d]
                if len(d_edge):
                    for d in range(width):
                        d_edge[e, d] = dm[d]
                if len(d_weight):
                    if mode == LINEAR:
                        for f in range(edge.shape[1]):
                            value = edge[e, f]
                            for d in range(width):
                                d_weight[f, d] += value * dm[d]
                    else:
                        row = ids[e]
                        for d in range(width):
                            d_weight[row, d] += dm[d]
            # Rows are added in double precision, since there may be millions of them.
            for d in range(width):
                d_exponent[0] += dt[d]
                dt[d] = zero

    return Kernels(forward, backward)


def _blocks(indptr: np.ndarray) -> np.ndarray:
    """Where blocks of about equal numbers of rows and edges start and end."""
    rows = len(indptr) - 1
    cost = indptr.astype(np.int64) + np.arange(rows + 1)
    return np.searchsorted(cost, np.linspace(0, cost[-1], BLOCKS + 1))


def _run(call: Callable[[int, int, int], None], bounds: np.ndarray) -> None:
    """Call with the number, start and end of each block, on as many threads as PyTorch uses."""
    spans = [(n, int(a), int(b)) for n, (a, b) in enumerate(itertools.pairwise(bounds)) if a < b]
    if not spans:
        return
    call(*spans[0])  # compiles once, before threads would each try
    threads = min(torch.get_num_threads(), len(spans))
    if threads == 1:
        for span in spans[1:]:
            call(*span)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(call, *span) for span in spans[1:]]:
            done.result()


def _arrays(edge: Tensor | None, weight: Tensor | None, rule: Rule, real: Any) -> tuple[np.ndarray, ...]:
    """Edge rows, edge ids and weights, empty where the rule has none."""
    rows, ids, weights = np.empty((0, 0), real), np.empty(0, np.int64), np.empty((0, 0), real)
    if edge is not None and rule.edge == "table":
        ids = edge.numpy().astype(np.int64, copy=False)
    elif edge is not None:
        rows = edge.numpy()
    return rows, ids, weights if weight is None else weight.numpy()


def forward(
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    arriving: Half,
    rule: Rule,
    into: tuple[Tensor, Tensor, np.ndarray] | None = None,
) -> tuple[Tensor, Tensor]:
    """As the reference; ``into`` gives results to overwrite and the rows to overwrite them in."""
    wide = x.numpy()
    indptr, indices, edges = (t.numpy() for t in arriving[:3])
    if into is None:
        y = torch.empty(len(indptr) - 1, x.shape[1], dtype=x.dtype)
        into = (y, torch.empty_like(y), np.arange(len(indptr) - 1, dtype=np.int64))
    y, k, rows = into
    pass_ = kernels(wide.dtype).forward
    data = (wide, wide.dtype.type(exponent.item()), *_arrays(edge, weight, rule, wide.dtype))
    choice = (rule.kind == "power", MODES[rule.edge], rule.relu, wide.dtype.type(rule.eps))
    cost = np.concatenate([[0], np.cumsum(indptr[rows + 1] - indptr[rows])])
    _run(lambda n, a, b: pass_(rows, a, b, *data, indptr, indices, edges, y.numpy(), k.numpy(), *choice), _blocks(cost))
    return y, k


def backward(
    grad: Tensor,
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    arriving: Half,
    leaving: Half,
    y: Tensor,
    k: Tensor,
    rule: Rule,
    needs: Needs,
    chosen: np.ndarray | None = None,
) -> Grads:
    """As the reference; ``chosen`` marks the targets whose part of the gradients is wanted, all when None."""
    wide = x.numpy()
    real = wide.dtype.type
    indptr, indices, edges = (t.numpy() for t in leaving[:3])
    dx = torch.zeros_like(x)
    d_edge = torch.empty_like(edge) if needs.edge and edge is not None else x.new_empty(0, 0)
    size = weight.shape if needs.weight and weight is not None else (0, 0)
    d_weight = np.zeros((BLOCKS, *size), wide.dtype)
    d_exponent = np.zeros((BLOCKS, 1))
    pass_ = kernels(wide.dtype).backward
    marks = np.empty(0, np.bool_) if chosen is None else chosen
    data = (grad.numpy(), wide, real(exponent.item()), *_arrays(edge, weight, rule, wide.dtype))
    found = (arriving.indptr.numpy(), y.numpy(), k.numpy(), dx.numpy(), d_edge.numpy())
    choice = (rule.kind == "power", MODES[rule.edge], rule.relu, rule.semi, real(rule.eps), needs.exponent)

    def block(n: int, first: int, last: int) -> None:
        pass_(marks, first, last, *data, indptr, indices, edges, *found, d_weight[n], d_exponent[n], *choice)

    _run(block, _blocks(indptr))
    return Grads(
        dx,
        exponent.new_tensor(d_exponent.sum()) if needs.exponent else None,
        d_edge if needs.edge else None,
        torch.from_numpy(d_weight.sum(0)) if needs.weight else None,
    )
