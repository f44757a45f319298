"""The loops over the edges of a graph, compiled for each aggregation, precision and number of lanes.

They compute what :mod:`normplace.ops.aggregate.reference` defines. A row is processed a few registers of channels at a
time, and in runs of edges, so that the data of a run stay in the nearest cache and the error of a hub's sums does not
grow with the number of its edges.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from normplace._shared.machine_code import keep_code
from normplace.ops.aggregate.reference import PSI_NEAR, PSI_SERIES
from normplace.ops.numba_lanes import SOURCES, Access, access, compiled, exp64, inlined, larger, log64, prefetch, where
from normplace.ops.numba_math import exp32, log32, weight32

# The finite number that replaces an infinite temperature: any difference then has weight zero.
HARDEST = 3e38
# Edges of a run.
RUN = 64
# Rows that are prefetched before they are needed; more would exceed the memory's queue.
PREFETCH = 16


class Kernels(NamedTuple):
    """The compiled passes of one aggregation; each processes the rows from ``first`` to ``last``."""

    logs: Callable[..., None]
    """``(first, last, x, out, relu, eps)``: the logarithms of messages without edge terms."""
    forward: Callable[..., None]
    """``(first, last, x, exponent, terms, ids, weight, indptr, indices, edges, y, k, relu, eps)``."""
    pull: Callable[..., None]
    """``(first, last, grad, k, indptr, out)``: the gradient times the factors of a weight that depend on its row alone,
    so that the backward pass reads one matrix less for each edge."""
    backward: Callable[..., None]
    """``(first, last, pulled, x, exponent, terms, ids, weight, indptr, indices, edges, y, k, dx, d_edge, d_weight,
    d_exponent, relu, eps, semi, need_exponent)``."""


class _Numbers(NamedTuple):
    """Constants and functions in one precision."""

    real: Any
    exp: Callable[..., Any]
    weigh: Callable[..., Any]
    """The exponential of values that are negative or slightly positive."""
    log: Callable[..., Any]
    psi_near: Any
    psi_series: tuple[Any, ...]


def _numbers(dtype: np.dtype) -> _Numbers:
    real = dtype.type
    if dtype == np.float64:
        return _Numbers(real, exp64, exp64, log64, real(PSI_NEAR), tuple(real(c) for c in PSI_SERIES))
    # Fewer terms suffice in float32: at 1/2 the first omitted term is 1e-8.
    return _Numbers(real, exp32, weight32, log32, real(0.5), tuple(real(c) for c in PSI_SERIES[-8:]))


def lanes_for(channels: int, dtype: np.dtype) -> int:
    """The fastest number of lanes: few passes over the edges, and few lanes without a channel."""
    if dtype == np.float64:
        return 8
    # The fixed cost of a pass equals about eight lanes.
    return min((64, 32, 16, 8), key=lambda lanes: -(-channels // lanes) * (lanes + 8))


def _term(edge: str, load: Callable[..., Any]) -> Callable[..., Any]:
    """A function that adds the term of an edge, from a column, to the source's features."""
    if edge == "none":

        @inlined
        def add_term(sent, terms, ids, weight, e, column):
            return sent

    elif edge == "dense":

        @inlined
        def add_term(sent, terms, ids, weight, e, column):
            return sent + load(terms, e, column)

    elif edge == "table":

        @inlined
        def add_term(sent, terms, ids, weight, e, column):
            return sent + load(weight, ids[e, 0], column)

    else:

        @inlined
        def add_term(sent, terms, ids, weight, e, column):
            for f in range(terms.shape[1]):
                sent = sent + terms[e, f] * load(weight, f, column)
            return sent

    return add_term


def _term_hint(edge: str, lanes: Access) -> Callable[..., Any]:
    """A function that prefetches the term of an edge, or its inputs."""
    prefetch_lanes = lanes.prefetch

    @inlined
    def ask(terms, ids, e, column):
        if edge == "dense":
            prefetch_lanes(terms, e, column)
        elif edge == "table":
            prefetch(ids, e)
        elif edge == "linear":
            prefetch(terms, e)

    return ask


@functools.cache
def kernels(dtype: np.dtype, kind: str, edge: str, count: int, whole: bool) -> Kernels:
    """The passes of an aggregation.

    Args:
        dtype: float32 or float64.
        kind: ``softmax`` or ``power``.
        edge: Kind of edge terms.
        count: Lanes, from :func:`lanes_for`.
        whole: Whether they divide the channels.
    """
    numbers, lanes = _numbers(dtype), access(dtype, count, whole)
    is_power = kind == "power"
    passes = Kernels(
        _logs(numbers, lanes, count),
        _forward(numbers, lanes, count, is_power, edge),
        _pull(numbers, lanes, count, is_power),
        _backward(numbers, lanes, count, is_power, edge),
    )
    keep_code(passes, SOURCES, dtype.name, kind, edge, count, whole)
    return passes


def _logs(numbers: _Numbers, lanes: Access, count: int) -> Callable[..., None]:
    load, store, log = lanes.load, lanes.store, numbers.log
    zero, infinity = numbers.real(0), numbers.real(np.inf)

    @compiled
    def logs(first, last, x, out, relu, eps):
        floor = zero if relu else -infinity
        for j in range(first, last):
            for column in range(0, x.shape[1], count):
                store(out, j, column, log(larger(floor, load(x, j, column)) + eps))

    return logs


def _pull(numbers: _Numbers, lanes: Access, count: int, is_power: bool) -> Callable[..., None]:
    load, store, weigh = lanes.load, lanes.store, numbers.weigh
    real, one = numbers.real, numbers.real(1)

    @compiled
    def pull(first, last, grad, k, indptr, out):
        for i in range(first, last):
            share = one / real(max(indptr[i + 1] - indptr[i], 1))
            for column in range(0, k.shape[1], count):
                g = load(grad, i, column)
                if is_power:
                    store(out, i, column, g * share)
                else:
                    # The entropy of n weights is at most log n, so this factor does not underflow.
                    store(out, i, column, g * weigh(-one * load(k, i, column)))

    return pull


def _forward(numbers: _Numbers, lanes: Access, count: int, is_power: bool, edge: str) -> Callable[..., None]:
    real, weigh, log, exp = numbers.real, numbers.weigh, numbers.log, numbers.exp
    load, store, fill, prefetch_lanes = lanes.load, lanes.store, lanes.fill, lanes.prefetch
    add_term, ask = _term(edge, load), _term_hint(edge, lanes)
    zero, one, half, infinity, hardest = real(0), real(1), real(0.5), real(np.inf), real(HARDEST)
    missing = real(np.nan)
    distance = PREFETCH // (2 if edge == "dense" else 1)
    takes_logs = is_power and edge != "none"  # without edge terms they are computed in advance, once for each source

    @inlined
    def shrink(u, ex):
        """``(exp(u) - 1) / u`` for u <= 0, from ``exp(u)``."""
        # Kahan's quotient near zero: exp(u) - 1 has lost digits there, but its error cancels in the quotient.
        return where(u > -half, where(ex == one, one, (ex - one) / log(ex)), (ex - one) / u)

    @compiled
    def forward(first, last, x, exponent, terms, ids, weight, indptr, indices, edges, y, k, relu, eps):
        kept = np.empty((RUN, count), real)
        floor, hard = zero if relu else -infinity, abs(exponent) >= hardest
        # A negative exponent equals a positive one of the negated values, so the pivot is always the largest value.
        sign, steep = -one if exponent < zero else one, min(abs(exponent), hardest)
        shallow = steep < half  # a power so small that the sum loses digits that the root amplifies
        is_mean = relu and steep == zero  # the mean of messages that are not minus infinity: every weight is 1
        for i in range(first, last):
            start, stop = indptr[i], indptr[i + 1]
            for column in range(0, x.shape[1], count):
                top, sums, lifts = fill(-infinity), fill(zero), fill(zero)
                for begin in range(start, stop, RUN):
                    end = min(begin + RUN, stop)
                    # Two passes over the run: the pivot, then sums relative to it.
                    high = top
                    for place in range(begin, end):
                        later = min(place + distance, len(indices) - 1)
                        prefetch_lanes(x, indices[later], column)
                        ask(terms, ids, edges[later], column)
                        sent = load(x, indices[place], column)
                        m = larger(floor, add_term(sent, terms, ids, weight, edges[place], column)) + eps
                        value = sign * (log(m) if takes_logs else m)
                        store(kept, place - begin, 0, value)
                        high = larger(value, high)
                    if begin > start:
                        shift = top - high
                        scale = weigh(steep * shift)
                        if is_power:
                            lifts = scale * lifts + real(begin - start) * (shift * shrink(steep * shift, scale))
                        else:
                            lifts = scale * (lifts + sums * shift)
                        sums = scale * sums
                    top, s, w = high, fill(zero), fill(zero)
                    if is_power and shallow:
                        for place in range(end - begin):
                            diff = load(kept, place, 0) - top
                            ex = weigh(steep * diff)
                            s = s + ex
                            w = w + diff * shrink(steep * diff, ex)
                    elif is_power:
                        for place in range(end - begin):
                            s = s + weigh(steep * (load(kept, place, 0) - top))
                    elif is_mean:
                        s = s + real(end - begin)
                        for place in range(end - begin):
                            w = w + (load(kept, place, 0) - top)
                    elif hard:  # a weight is 1 or 0, or nan as its value
                        for place in range(end - begin):
                            value = load(kept, place, 0)
                            s = s + where(value == top, one, where(value < top, fill(zero), fill(missing)))
                    else:
                        for place in range(end - begin):
                            diff = load(kept, place, 0) - top
                            ex = weigh(steep * diff)
                            s = s + ex
                            w = w + ex * diff
                    sums = sums + s
                    lifts = lifts + w
                if start == stop:
                    store(y, i, column, fill(zero))
                    store(k, i, column, fill(zero))
                elif is_power:
                    n = real(stop - start)
                    mean, excess = sums / n, lifts / n
                    log_mean = log(mean) / steep
                    if shallow:
                        lift = steep * excess + one
                        ratio = where(lift == one, one, log(lift) / (lift - one))
                        log_mean = where(mean < half, log_mean, excess * ratio)
                    log_mean = sign * (top + log_mean)
                    store(k, i, column, log_mean)
                    store(y, i, column, exp(log_mean))
                else:
                    # The largest of values with a nan is nan.
                    mean = where(sums == sums, top, sums) if hard else top + lifts / sums
                    store(y, i, column, sign * mean)
                    store(k, i, column, log(sums) + steep * (top - mean))

    return forward


def _backward(numbers: _Numbers, lanes: Access, count: int, is_power: bool, edge: str) -> Callable[..., None]:
    real, weigh, log, exp = numbers.real, numbers.weigh, numbers.log, numbers.exp
    near, (first_of_series, *others) = numbers.psi_near, numbers.psi_series
    rest_of_series = tuple(others)
    load, store, fill, add_up, prefetch_lanes, _ = lanes
    add_term, ask = _term(edge, load), _term_hint(edge, lanes)
    zero, one, infinity, hardest, flat = real(0), real(1), real(np.inf), real(HARDEST), real(-200)
    distance = PREFETCH // ((3 if is_power else 2) + (2 if edge == "dense" else 0))

    @inlined
    def add_features(terms, edges, begin, end, kept, d_weight, column):
        """Add the gradients of a run of edges to that of the linear map, four features at a time."""
        many = terms.shape[1]
        for f in range(0, many - 3, 4):
            a, b = load(d_weight, f, column), load(d_weight, f + 1, column)
            c, d = load(d_weight, f + 2, column), load(d_weight, f + 3, column)
            for place in range(begin, end):
                e, dm = edges[place], load(kept, place - begin, 0)
                a, b = a + terms[e, f] * dm, b + terms[e, f + 1] * dm
                c, d = c + terms[e, f + 2] * dm, d + terms[e, f + 3] * dm
            store(d_weight, f, column, a)
            store(d_weight, f + 1, column, b)
            store(d_weight, f + 2, column, c)
            store(d_weight, f + 3, column, d)
        for f in range(many - many % 4, many):
            a = load(d_weight, f, column)
            for place in range(begin, end):
                a = a + terms[edges[place], f] * load(kept, place - begin, 0)
            store(d_weight, f, column, a)

    @compiled
    def backward(
        first, last, pulled, x, exponent, terms, ids, weight, indptr, indices, edges, y, k,
        dx, d_edge, d_weight, d_exponent, relu, eps, semi, need_exponent,
    ):  # fmt: skip
        kept = np.empty((RUN, count), real)
        floor, flow = zero if relu else -infinity, zero if semi else one
        t = min(max(exponent, -hardest), hardest)  # infinity times a difference of zero would be nan
        inverse = one / (t * t)
        is_mean = relu and t == zero and not need_exponent  # all messages of a row have the same gradient
        for j in range(first, last):
            start, stop = indptr[j], indptr[j + 1]
            for column in range(0, x.shape[1], count):
                sent, total = load(x, j, column), fill(zero)
                for begin in range(start, stop, RUN):
                    end = min(begin + RUN, stop)
                    part, dt = fill(zero), fill(zero)
                    for place in range(begin, end):
                        i, e = indices[place], edges[place]
                        later = min(place + distance, len(indices) - 1)
                        prefetch_lanes(pulled, indices[later], column)
                        if is_power:
                            prefetch_lanes(k, indices[later], column)
                        if need_exponent or not is_power:
                            prefetch_lanes(y, indices[later], column)
                        ask(terms, ids, edges[later], column)
                        if edge == "dense" and len(d_edge):
                            prefetch_lanes(d_edge, edges[later], column)
                        g, before = load(pulled, i, column), add_term(sent, terms, ids, weight, e, column)
                        m = larger(floor, before) + eps
                        if is_power:
                            diff = log(m) - load(k, i, column)
                            slope = g * exp((t - one) * diff)
                            if need_exponent:
                                u, row = t * diff, load(y, i, column)
                                near_zero = fill(first_of_series)
                                for coefficient in rest_of_series:
                                    near_zero = near_zero * u + coefficient
                                # y u² psi(u) from the known exponential: y exp(u) = m exp((p - 1) diff).
                                far = ((u - one) * (slope * m) + g * row) * inverse
                                is_near = larger(u, -one * u) < near
                                dt = dt + where(is_near, g * row * diff * diff * near_zero, far)
                        elif is_mean:
                            slope = g
                        else:
                            diff = m - load(y, i, column)
                            u = t * diff
                            a = g * weigh(u)
                            slope = a * (one + flow * larger(flat, u))  # zero where the weight is zero
                            dt = dt + a * diff * diff
                        dm = where(before <= floor, zero, slope)
                        part = part + dm
                        if edge == "dense":
                            if len(d_edge):
                                store(d_edge, e, column, dm)
                        elif edge == "table":
                            if len(d_weight):
                                row_of = ids[e, 0]
                                store(d_weight, row_of, column, load(d_weight, row_of, column) + dm)
                        elif edge == "linear":
                            store(kept, place - begin, 0, dm)
                    if edge == "linear" and len(d_weight):
                        add_features(terms, edges, begin, end, kept, d_weight, column)
                    total = total + part
                    d_exponent[0] += add_up(x, column, dt)
                store(dx, j, column, total)

    return backward
