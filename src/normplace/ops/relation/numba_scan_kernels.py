"""The loops of the scan: one row after the other, whose channels stay in the nearest cache.

A head of a row is a row of a matrix. The sum of a block of rows is added in float64 to that of all rows before, so that
rounding errors do not grow with the length; a pass over any range of blocks adds the same numbers in the same order.
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

BLOCK = 64
"""Rows of a block."""
FLOAT = np.dtype(np.float32)
_ZERO, _ONE, _LOG2E = np.float32(0), np.float32(1), np.float32(math.log2(math.e))
_NAN = np.float32(math.nan)


class Kernels(NamedTuple):
    """The passes over some rows of one sequence.

    ``base`` is its first row and ``heads`` the number of heads. ``exact`` holds the sums before the rows in float64.
    ``before`` (or ``after``), ``sums``, ``z``, ``gates`` and ``rows`` are scratch memory; sums are zero at the start.
    """

    key_sums: Callable[..., None]
    """The sum of each block."""
    relate: Callable[..., None]
    """The forward pass."""
    query_gradients: Callable[..., None]
    """The gradient of a, q of every row (in the place of the gradient of b) and the sum of q of each block."""
    key_gradients: Callable[..., None]
    """The gradient of b."""


def lanes_for(width: int) -> int:
    """The number of lanes: few without a channel, and few enough for all temporaries to stay in registers."""
    return min((32, 16, 8), key=lambda lanes: -(-width // lanes) * (lanes + 4))


@functools.cache
def kernels(count: int, whole: bool) -> Kernels:
    """The passes for a number of lanes, from :func:`lanes_for`; ``whole`` if they divide the channels of a head."""
    lanes = access(FLOAT, count, whole)
    statistics = _statistics(lanes, count)
    passes = Kernels(
        _key_sums(lanes, count, statistics),
        _relate(lanes, count, statistics),
        _query_gradients(lanes, count, statistics),
        _key_gradients(lanes, count),
    )
    keep_code(passes, SOURCES, count, whole)
    return passes


@compiled
def _carry(exact, sums, rounded):
    """Add the sums of a finished block to those before it, and start the next. Faster to compile than expressions."""
    for head in range(exact.shape[0]):
        for column in range(exact.shape[1]):
            exact[head, column] += sums[head, column]
            rounded[head, column] = exact[head, column]
            sums[head, column] = _ZERO


@compiled
def _add(exact, block, place):
    """Add the sums of a block of a sequence."""
    for head in range(exact.shape[0]):
        for column in range(exact.shape[1]):
            exact[head, column] += block[place + head, column]


@compiled
def _erase(x, first, count):
    """Set rows to zero."""
    for row in range(first, first + count):
        for column in range(x.shape[1]):
            x[row, column] = _ZERO


def _statistics(lanes: Access, count: int) -> Callable[..., Any]:
    load, fill, add_up, clear = lanes.load, lanes.fill, lanes.add_up, lanes.clear

    @compiled
    def statistics(x, row, eps):
        """The mean of a row without its first value, and the scale of its norm.

        Without the first value equal values are exactly zero, and a large mean costs no digits.
        """
        width = np.float32(x.shape[1])
        first, total, squares = x[row, 0], fill(_ZERO), fill(_ZERO)
        for column in range(0, x.shape[1], count):
            total = total + clear(x, column, load(x, row, column) - first)
        mean = add_up(x, 0, total) / width
        for column in range(0, x.shape[1], count):
            centred = clear(x, column, load(x, row, column) - first - mean)
            squares = squares + centred * centred
        scale = _ONE / np.float32(math.sqrt(add_up(x, 0, squares) / width + eps))
        return mean, scale if scale > _ZERO else _NAN  # squares that are too large

    return statistics


def _key_sums(lanes: Access, count: int, statistics: Callable[..., Any]) -> Callable[..., None]:
    load, store = lanes.load, lanes.store

    @compiled
    def key_sums(base, first, last, heads, b, weight, eps, sums):
        for t in range(first, last):
            if weight[t] == _ZERO:
                continue
            for head in range(heads):
                row, place = (base + t) * heads + head, t // BLOCK * heads + head
                lead = b[row, 0]
                mean, scale = statistics(b, row, eps)
                scale *= _LOG2E
                for column in range(0, b.shape[1], count):
                    power = power_of_two32((load(b, row, column) - lead - mean) * scale)
                    store(sums, place, column, load(sums, place, column) + power)

    return key_sums


def _relate(lanes: Access, count: int, statistics: Callable[..., Any]) -> Callable[..., None]:
    load, store, fill, add_up, clear = lanes.load, lanes.store, lanes.fill, lanes.add_up, lanes.clear

    @compiled
    def relate(base, first, last, heads, a, b, weight, exact, before, sums, y, causal, post_norm, eps, post_eps, lower):
        _carry(exact, sums, before)
        size = np.float32(heads * a.shape[1])
        for t in range(first, last):
            top, w = (base + t) * heads, weight[t]
            if causal and t > first and t % BLOCK == 0:
                _carry(exact, sums, before)
            if w == _ZERO:
                _erase(y, top, heads)
                continue
            total = fill(_ZERO)
            for head in range(heads):
                row = top + head
                mean, scale = statistics(a, row, eps)
                lead, scale = a[row, 0], scale * _LOG2E
                if causal:
                    mean_b, scale_b = statistics(b, row, eps)
                    lead_b, scale_b = b[row, 0], scale_b * _LOG2E
                    for column in range(0, a.shape[1], count):
                        gate = power_of_two32((load(a, row, column) - lead - mean) * scale - lower)
                        power = power_of_two32((load(b, row, column) - lead_b - mean_b) * scale_b)
                        power = power + load(sums, head, column)
                        store(sums, head, column, power)
                        store(y, row, column, gate * (power + load(before, head, column)) * w)
                else:
                    for column in range(0, a.shape[1], count):
                        gate = power_of_two32((load(a, row, column) - lead - mean) * scale - lower)
                        store(y, row, column, gate * load(before, head, column) * w)
            if post_norm:
                lead, squares = y[top, 0], fill(_ZERO)
                for row in range(top, top + heads):
                    for column in range(0, a.shape[1], count):
                        total = total + clear(y, column, load(y, row, column) - lead)
                mean = add_up(y, 0, total) / size
                for row in range(top, top + heads):
                    for column in range(0, a.shape[1], count):
                        centred = clear(y, column, load(y, row, column) - lead - mean)
                        squares = squares + centred * centred
                        store(y, row, column, centred)
                variance = add_up(y, 0, squares) / size + post_eps
                scale = _ONE / np.float32(math.sqrt(variance))
                for row in range(top, top + heads):
                    for column in range(0, a.shape[1], count):
                        store(y, row, column, load(y, row, column) * scale)

    return relate


def _query_gradients(lanes: Access, count: int, statistics: Callable[..., Any]) -> Callable[..., None]:
    load, store, fill, add_up, clear = lanes.load, lanes.store, lanes.fill, lanes.add_up, lanes.clear

    @compiled
    def query_gradients(
        base, first, last, heads, grad, a, b, weight, exact, before, sums, z, gates, rows, da, db, keys, q_sums, causal,
        post_norm, eps, post_eps, lower,
    ):  # fmt: skip
        _carry(exact, sums, before)
        width = np.float32(a.shape[1])
        size = np.float32(heads) * width
        for t in range(first, last):
            top, w, block = (base + t) * heads, weight[t], t // BLOCK * heads
            if causal and t > first and t % BLOCK == 0:
                _carry(exact, sums, before)
            if w == _ZERO:
                _erase(da, top, heads)
                _erase(db, top, heads)
                continue
            for head in range(heads):
                row = top + head
                mean, scale = statistics(a, row, eps)
                rows[head, 0], rows[head, 1] = mean, scale
                lead, scale = a[row, 0], scale * _LOG2E
                mean_b, scale_b = statistics(b, row, eps)
                keys[row, 0], keys[row, 1] = mean_b, scale_b
                lead_b, scale_b = b[row, 0], scale_b * _LOG2E
                for column in range(0, a.shape[1], count):
                    gate = power_of_two32((load(a, row, column) - lead - mean) * scale - lower)
                    total = load(before, head, column)
                    if causal:
                        power = power_of_two32((load(b, row, column) - lead_b - mean_b) * scale_b)
                        power = power + load(sums, head, column)
                        store(sums, head, column, power)
                        total = total + power
                    gate = gate * w
                    store(gates, head, column, gate)
                    store(z, head, column, gate * total)
            # The gradient of z is post_scale · (g - mean_g - n · mean_gn), with n = z's norm.
            post_mean, post_scale, mean_g, mean_gn = _ZERO, _ONE, _ZERO, _ZERO
            lead = z[0, 0]
            if post_norm:
                total, squares, first_sum, second_sum = fill(_ZERO), fill(_ZERO), fill(_ZERO), fill(_ZERO)
                for head in range(heads):
                    for column in range(0, a.shape[1], count):
                        total = total + clear(z, column, load(z, head, column) - lead)
                        first_sum = first_sum + clear(z, column, load(grad, top + head, column))
                post_mean, mean_g = add_up(z, 0, total) / size, add_up(z, 0, first_sum) / size
                for head in range(heads):
                    for column in range(0, a.shape[1], count):
                        centred = clear(z, column, load(z, head, column) - lead - post_mean)
                        squares = squares + centred * centred
                        second_sum = second_sum + centred * (load(grad, top + head, column) - mean_g)
                post_scale = _ONE / np.float32(math.sqrt(add_up(z, 0, squares) / size + post_eps))
                mean_gn = add_up(z, 0, second_sum) / size * post_scale
            for head in range(heads):
                row = top + head
                lead_a, mean, scale = a[row, 0], rows[head, 0], rows[head, 1]
                first_sum, second_sum = fill(_ZERO), fill(_ZERO)
                for column in range(0, a.shape[1], count):
                    g, value = load(grad, row, column), load(z, head, column)
                    if post_norm:
                        n = (value - lead - post_mean) * post_scale
                        g = (g - mean_g - n * mean_gn) * post_scale
                    q = g * load(gates, head, column)
                    store(db, row, column, q)
                    store(q_sums, block + head, column, load(q_sums, block + head, column) + q)
                    du = clear(z, column, g * value)
                    store(z, head, column, du)
                    first_sum = first_sum + du
                    second_sum = second_sum + du * (load(a, row, column) - lead_a - mean)
                mean_du, mean_dun = add_up(z, 0, first_sum) / width, add_up(z, 0, second_sum) / width * scale * scale
                for column in range(0, a.shape[1], count):
                    centred = load(a, row, column) - lead_a - mean
                    store(da, row, column, (load(z, head, column) - mean_du - centred * mean_dun) * scale)

    return query_gradients


def _key_gradients(lanes: Access, count: int) -> Callable[..., None]:
    load, store, fill, add_up, clear = lanes.load, lanes.store, lanes.fill, lanes.add_up, lanes.clear

    @compiled
    def key_gradients(base, first, last, heads, b, weight, keys, exact, after, sums, q_sums, db, causal):
        _carry(exact, sums, after)
        width = np.float32(b.shape[1])
        for t in range(last - 1, first - 1, -1):
            top, block = (base + t) * heads, t // BLOCK * heads
            if causal and t < last - 1 and (t + 1) % BLOCK == 0:
                _erase(sums, 0, heads)
                _add(exact, q_sums, block + heads)
                _carry(exact, sums, after)
            if weight[t] == _ZERO:
                continue
            for head in range(heads):
                row = top + head
                lead, mean, scale = b[row, 0], keys[row, 0], keys[row, 1]
                power_scale = scale * _LOG2E
                first_sum, second_sum = fill(_ZERO), fill(_ZERO)
                for column in range(0, b.shape[1], count):
                    centred = load(b, row, column) - lead - mean
                    total = load(after, head, column)
                    if causal:
                        later = load(sums, head, column) + load(db, row, column)
                        store(sums, head, column, later)
                        total = total + later
                    dv = clear(b, column, power_of_two32(centred * power_scale) * total)
                    store(db, row, column, dv)
                    first_sum = first_sum + dv
                    second_sum = second_sum + dv * centred
                mean_dv, mean_dvn = add_up(b, 0, first_sum) / width, add_up(b, 0, second_sum) / width * scale * scale
                for column in range(0, b.shape[1], count):
                    centred = load(b, row, column) - lead - mean
                    store(db, row, column, (load(db, row, column) - mean_dv - centred * mean_dvn) * scale)

    return key_gradients
