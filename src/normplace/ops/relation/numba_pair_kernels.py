"""The loops over pairs of rows: the exponential of each normalized pair is computed in registers.

A head of a row is a row of a matrix. The keys of a query are processed in runs: first the scales of their norms, then
the exponentials. A scale follows from the sum of two centred rows; if they nearly cancel, from the rows themselves.
Exponents are in base 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from normplace._shared.machine_code import keep_code
from normplace.ops.numba_lanes import SOURCES, Access, access, compiled
from normplace.ops.numba_math import power_of_two32
from normplace.ops.relation.pair_reference import NEARLY_CANCELLED

RUN = 32
"""Keys of a run: their scales, and in the backward pass their exponentials, stay in the nearest cache."""
FLOAT = np.dtype(np.float32)
_ZERO, _ONE, _LOG2E = np.float32(0), np.float32(1), np.float32(math.log2(math.e))
_SKIPPED, _NAN = np.float32(-1), np.float32(math.nan)
_CANCELLED = np.float32(NEARLY_CANCELLED)


class Kernels(NamedTuple):
    """The passes over some queries of one sequence; ``base`` is its first row, ``heads`` the number of heads."""

    centre: Callable[..., None]
    """Rows minus their mean, and the mean of their squares."""
    relate: Callable[..., None]
    """The sums over keys."""
    gradients: Callable[..., None]
    """The gradients of queries and keys without the part through the mean of each pair, added to their values."""


@functools.cache
def kernels(count: int, whole: bool) -> Kernels:
    """The passes for a number of lanes; ``whole`` if they divide the channels of a head."""
    lanes = access(FLOAT, count, whole)
    scales = _scales(lanes, count)
    passes = Kernels(_centre(lanes, count), _relate(lanes, count, scales), _gradients(lanes, count, scales))
    keep_code(passes, SOURCES, count, whole)
    return passes


def _centre(lanes: Access, count: int) -> Callable[..., None]:
    load, store, fill, add_up, clear = lanes.load, lanes.store, lanes.fill, lanes.add_up, lanes.clear

    @compiled
    def centre(x, out, squares):
        width = np.float32(x.shape[1])
        for row in range(len(x)):
            # Without the first value equal values are exactly zero, and a large mean costs no digits.
            first, total, square = x[row, 0], fill(_ZERO), fill(_ZERO)
            for column in range(0, x.shape[1], count):
                total = total + clear(x, column, load(x, row, column) - first)
            mean = add_up(x, 0, total) / width
            for column in range(0, x.shape[1], count):
                centred = clear(x, column, load(x, row, column) - first - mean)
                square = square + centred * centred
                store(out, row, column, centred)
            squares[row] = add_up(x, 0, square) / width

    return centre


def _scales(lanes: Access, count: int) -> Callable[..., Any]:
    load, store, fill, add_up, clear = lanes.load, lanes.store, lanes.fill, lanes.add_up, lanes.clear

    @compiled
    def scales(row, top, begin, end, heads, head, a, b, rows, keys, square_a, square_b, weight, eps, factors, pairs):
        """The scales of the norms of a query with a run of keys, negative where masked, and the centred pairs."""
        width = np.float32(a.shape[1])
        for place in range(end - begin):
            t = begin + place
            key = (top + t) * heads + head
            if weight[t] == _ZERO:
                factors[place] = _SKIPPED
                continue
            square = fill(_ZERO)
            for column in range(0, a.shape[1], count):
                pair = clear(a, column, load(rows, row, column) + load(keys, key, column))
                square = square + pair * pair
                store(pairs, place, column, pair)
            variance = add_up(a, 0, square) / width
            if variance < _CANCELLED * (square_a[row] + square_b[key]):
                first, total, square = a[row, 0] + b[key, 0], fill(_ZERO), fill(_ZERO)
                for column in range(0, a.shape[1], count):
                    total = total + clear(a, column, load(a, row, column) + load(b, key, column) - first)
                mean = add_up(a, 0, total) / width
                for column in range(0, a.shape[1], count):
                    pair = clear(a, column, load(a, row, column) + load(b, key, column) - first - mean)
                    square = square + pair * pair
                    store(pairs, place, column, pair)
                variance = add_up(a, 0, square) / width
            scale = _ONE / np.float32(math.sqrt(variance + eps))
            factors[place] = scale if scale > _ZERO else _NAN  # squares that are too large

    return scales


def _relate(lanes: Access, count: int, scales: Callable[..., Any]) -> Callable[..., None]:
    load, store, fill = lanes.load, lanes.store, lanes.fill

    @compiled
    def relate(base, first, last, heads, a, b, rows, keys, square_a, square_b, weight, y, causal, eps):
        factors, pairs = np.empty(RUN, np.float32), np.empty((RUN, a.shape[1]), np.float32)
        for i in range(first, last):
            if weight[i] == _ZERO:
                continue
            limit = i + 1 if causal else len(weight)
            for head in range(heads):
                row = (base + i) * heads + head
                for begin in range(0, limit, RUN):
                    end = min(begin + RUN, limit)
                    scales(
                        row, base, begin, end, heads, head, a, b, rows, keys, square_a, square_b, weight, eps, factors,
                        pairs,
                    )  # fmt: skip
                    for column in range(0, a.shape[1], count):
                        total = fill(_ZERO)
                        for place in range(end - begin):
                            if not factors[place] < _ZERO:  # nan too
                                total = total + power_of_two32(load(pairs, place, column) * (factors[place] * _LOG2E))
                        store(y, row, column, load(y, row, column) + total)
                for column in range(0, a.shape[1], count):
                    store(y, row, column, load(y, row, column) * weight[i])

    return relate


def _gradients(lanes: Access, count: int, scales: Callable[..., Any]) -> Callable[..., None]:
    load, store, fill, add_up, clear = lanes.load, lanes.store, lanes.fill, lanes.add_up, lanes.clear

    @compiled
    def gradients(base, first, last, heads, grad, a, b, rows, keys, square_a, square_b, weight, da, db, causal, eps):
        factors, pairs = np.empty(RUN, np.float32), np.empty((RUN, a.shape[1]), np.float32)
        slopes, through = np.empty_like(pairs), np.empty_like(factors)
        width = np.float32(a.shape[1])
        for i in range(first, last):
            if weight[i] == _ZERO:
                continue
            limit = i + 1 if causal else len(weight)
            for head in range(heads):
                row = (base + i) * heads + head
                for begin in range(0, limit, RUN):
                    end = min(begin + RUN, limit)
                    scales(
                        row, base, begin, end, heads, head, a, b, rows, keys, square_a, square_b, weight, eps, factors,
                        pairs,
                    )  # fmt: skip
                    for place in range(end - begin):
                        scale, total = factors[place], fill(_ZERO)
                        if scale < _ZERO:
                            continue
                        for column in range(0, a.shape[1], count):
                            pair = load(pairs, place, column)
                            slope = power_of_two32(pair * (scale * _LOG2E)) * (load(grad, row, column) * weight[i])
                            slope = clear(a, column, slope * scale)
                            total = total + slope * pair
                            store(slopes, place, column, slope)
                        through[place] = add_up(a, 0, total) / width * scale * scale
                    for column in range(0, a.shape[1], count):
                        total = fill(_ZERO)
                        for place in range(end - begin):
                            if factors[place] < _ZERO:
                                continue
                            key = (begin + place) * heads + head
                            dx = load(slopes, place, column) - load(pairs, place, column) * through[place]
                            total = total + dx
                            store(db, key, column, load(db, key, column) + dx)
                        store(da, row, column, load(da, row, column) + total)

    return gradients
