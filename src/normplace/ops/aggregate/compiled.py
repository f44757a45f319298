"""Generalized aggregation on a CPU, compiled with numba: no temporary of the size of the edges.

The mathematics is that of :mod:`normplace.ops.aggregate.reference`. Rows are shared out among threads, the backward
pass walks the edges that leave each node, and sums over the whole graph are kept per block of rows: no two threads
write to one place and the result does not depend on how many there are.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normplace.ops.aggregate.compiled_math import (
    compiled,
    exp32,
    exp64,
    inlined,
    log32,
    log64,
    prefetch_row,
    weight32,
)
from normplace.ops.aggregate.neighbours import Half
from normplace.ops.aggregate.reference import PSI_NEAR, PSI_SERIES, Grads, Needs, Rule

# An infinite temperature, as a number: so steep that any difference leaves no weight.
HARDEST = 3e38
# Edges between the one worked on and the one whose row is asked for, so that memory answers in time.
AHEAD = 8
# Edges after which a sum is put aside: the error of a hub's sum grows with these and not with all its edges.
PARTIAL = 256
# Blocks of about equal numbers of edges; fixed, so that sums over blocks are the same for any number of threads.
BLOCKS = 64
NONE, DENSE, LINEAR, TABLE = range(4)
MODES = {"none": NONE, "dense": DENSE, "linear": LINEAR, "table": TABLE}


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
    infinity, flat, hardest = real(np.inf), real(-200), real(HARDEST)
    series = tuple(real(c) for c in PSI_SERIES)

    @inlined
    def term_row(edge, ids, weight, e, mode, term):
        """The row of the array of edge terms that holds the term of edge ``e``, computed first where it is linear."""
        row = np.int64(0)
        if mode == DENSE:
            row = np.int64(e)
        elif mode == TABLE:
            row = ids[e, 0]
        elif mode == LINEAR:
            many = edge.shape[1]
            # Four features at a time, so that the row is read and written a quarter as often.
            for f in range(0, many - 3, 4):
                v0, v1, v2, v3 = edge[e, f], edge[e, f + 1], edge[e, f + 2], edge[e, f + 3]
                for d in range(term.shape[1]):
                    pairs = (v0 * weight[f, d] + v1 * weight[f + 1, d]) + (
                        v2 * weight[f + 2, d] + v3 * weight[f + 3, d]
                    )
                    term[0, d] = pairs if f == 0 else term[0, d] + pairs
            for f in range(many - many % 4, many):
                v0 = edge[e, f]
                for d in range(term.shape[1]):
                    term[0, d] = v0 * weight[f, d] if f == 0 else term[0, d] + v0 * weight[f, d]
        return row

    @inlined
    def shrink(u, ex):
        """``(exp(u) - 1) / u`` for u <= 0, given exp(u)."""
        # Kahan's quotient near zero, where exp(u) - 1 has lost digits but its error divides out.
        return (one if ex == one else (ex - one) / log(ex)) if u > -half else (ex - one) / u

    @compiled
    def forward(
        rows, first, last, x, t, edge, ids, weight, indptr, indices, edges, y, k, is_power, mode, relu, eps
    ):  # fmt: skip
        width = x.shape[1]
        c, s, w = np.empty(width, real), np.empty(width, real), np.empty(width, real)
        sums, lifts = np.empty(width, real), np.empty(width, real)
        buffer = np.zeros((1, width), real)
        term = edge if mode == DENSE else weight if mode == TABLE else buffer
        floor, hard = zero if relu else -infinity, abs(t) >= hardest
        shallow = abs(t) < half  # a power so small that the sum alone loses digits that the root magnifies
        t = min(max(t, -hardest), hardest)  # infinity times no difference would not be zero
        for position in range(first, last):
            i = rows[position]
            start, stop = indptr[i], indptr[i + 1]
            # Twice over the row, which is near by the second time: the pivot, and then sums relative to it.
            for d in range(width):
                c[d] = infinity if t < zero else -infinity
                s[d] = w[d] = sums[d] = lifts[d] = zero
            for place in range(start, stop):
                later = min(place + AHEAD, len(indices) - 1)
                prefetch_row(x, indices[later])
                if mode == TABLE:
                    prefetch_row(ids, edges[later])
                elif mode != NONE:
                    prefetch_row(edge, edges[later])
                j, r = indices[place], term_row(edge, ids, weight, edges[place], mode, buffer)
                if t < zero:
                    for d in range(width):
                        c[d] = min(x[j, d] + term[r, d], c[d])
                else:
                    for d in range(width):
                        c[d] = max(x[j, d] + term[r, d], c[d])
            for d in range(width):
                c[d] = max(c[d], floor) + eps
                c[d] = np.log(c[d]) if is_power else c[d]
            for place in range(start, stop):
                j, r = indices[place], term_row(edge, ids, weight, edges[place], mode, buffer)
                if is_power and shallow:
                    for d in range(width):
                        diff = log(max(x[j, d] + term[r, d], floor) + eps) - c[d]
                        ex = weigh(t * diff)
                        w[d] += diff * shrink(t * diff, ex)
                        s[d] += ex
                elif is_power:
                    for d in range(width):
                        s[d] += weigh(t * (log(max(x[j, d] + term[r, d], floor) + eps) - c[d]))
                else:
                    for d in range(width):
                        diff = max(x[j, d] + term[r, d], floor) + eps - c[d]
                        ex = weigh(t * diff)
                        w[d] += ex * diff
                        s[d] += ex
                if (place - start) % PARTIAL == PARTIAL - 1 or place == stop - 1:
                    for d in range(width):
                        sums[d] += s[d]
                        lifts[d] += w[d]
                        s[d] = w[d] = zero
            n = real(stop - start)
            for d in range(width):
                if start == stop:
                    y[i, d] = k[i, d] = zero
                elif is_power:
                    mean, excess = sums[d] / n, lifts[d] / n
                    lift = one + t * excess
                    ratio = one if lift == one else np.log(lift) / (lift - one)
                    k[i, d] = c[d] + (excess * ratio if shallow and mean >= half else np.log(mean) / t)
                    y[i, d] = np.exp(k[i, d])
                else:
                    y[i, d] = c[d] + (zero if hard else lifts[d] / sums[d])
                    k[i, d] = np.log(sums[d]) + t * (c[d] - y[i, d])

    @compiled
    def backward(
        chosen, first, last, grad, x, t, edge, ids, weight, indptr, indices, edges, degree_ptr, y, k,
        dx, d_edge, d_weight, d_exponent, is_power, mode, relu, semi, eps, need_exponent,
    ):  # fmt: skip
        width = x.shape[1]
        dm, dt, total = np.empty(width, real), np.zeros(width, real), np.zeros(width, real)
        buffer = np.zeros((1, width), real)
        term = edge if mode == DENSE else weight if mode == TABLE else buffer
        floor, flow = zero if relu else -infinity, zero if semi else one
        t = min(max(t, -hardest), hardest)
        for j in range(first, last):
            for place in range(indptr[j], indptr[j + 1]):
                i, e = indices[place], edges[place]
                if len(chosen) and not chosen[i]:
                    continue
                later = min(place + AHEAD, len(indices) - 1)
                prefetch_row(grad, indices[later])
                prefetch_row(k, indices[later])
                if need_exponent or not is_power:
                    prefetch_row(y, indices[later])
                if mode == TABLE:
                    prefetch_row(ids, edges[later])
                elif mode != NONE:
                    prefetch_row(edge, edges[later])
                if len(d_edge):
                    prefetch_row(d_edge, edges[later])
                r = term_row(edge, ids, weight, e, mode, buffer)
                if is_power:
                    share = one / real(degree_ptr[i + 1] - degree_ptr[i])
                    for d in range(width):
                        b = x[j, d] + term[r, d]
                        diff = log(max(b, floor) + eps) - k[i, d]
                        slope = grad[i, d] * share * exp((t - one) * diff)
                        dm[d] = zero if b <= floor else slope
                    if need_exponent:
                        for d in range(width):
                            diff = log(max(x[j, d] + term[r, d], floor) + eps) - k[i, d]
                            u = t * diff
                            near_zero = zero
                            for coefficient in series:
                                near_zero = near_zero * u + coefficient
                            ex = exp(u)
                            psi = near_zero if abs(u) < near else (ex - (ex - one) / u) / u
                            dt[d] += grad[i, d] * share * y[i, d] * diff * diff * psi
                else:
                    for d in range(width):
                        b = x[j, d] + term[r, d]
                        diff = max(b, floor) + eps - y[i, d]
                        u = t * diff
                        a = grad[i, d] * weigh(u - k[i, d])
                        slope = a * (one + flow * max(u, flat))  # where the weight is nothing, so is its slope
                        dm[d] = zero if b <= floor else slope
                        dt[d] += a * diff * diff
                for d in range(width):
                    total[d] += dm[d]
                if (place - indptr[j]) % PARTIAL == PARTIAL - 1:
                    for d in range(width):
                        dx[j, d] += total[d]
                        total[d] = zero
                if len(d_edge):
                    for d in range(width):
                        d_edge[e, d] = dm[d]
                if len(d_weight) and mode == LINEAR:
                    for f in range(edge.shape[1]):
                        value = edge[e, f]
                        for d in range(width):
                            d_weight[f, d] += value * dm[d]
                elif len(d_weight):
                    for d in range(width):
                        d_weight[r, d] += dm[d]
            # Rows are added in double precision, since there may be millions of them.
            for d in range(width):
                d_exponent[0] += dt[d]
                dx[j, d] += total[d]
                dt[d] = total[d] = zero

    return Kernels(forward, backward)


def _blocks(indptr: np.ndarray) -> np.ndarray:
    """Where blocks of about equal numbers of rows and edges start and end."""
    rows = len(indptr) - 1
    cost = indptr.astype(np.int64) + np.arange(rows + 1)
    return np.searchsorted(cost, np.linspace(0, cost[-1], BLOCKS + 1))


def _run(call: Callable[[int, int, int], None], bounds: np.ndarray) -> None:
    """Call with the number, start and end of each block, on as many threads as PyTorch uses."""
    spans = [(n, int(a), int(b)) for n, (a, b) in enumerate(itertools.pairwise(bounds)) if a < b]
    threads = min(torch.get_num_threads(), len(spans))
    if threads <= 1:
        for span in spans:
            call(*span)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(call, *span) for span in spans]:
            done.result()


def _arrays(edge: Tensor | None, weight: Tensor | None, rule: Rule, real: Any) -> tuple[np.ndarray, ...]:
    """Edge rows, edge ids and weights, empty where the rule has none."""
    rows, ids, weights = np.empty((0, 0), real), np.empty((0, 1), np.int64), np.empty((0, 0), real)
    if edge is not None and rule.edge == "table":
        ids = edge.numpy().astype(np.int64, copy=False)[:, None]
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
