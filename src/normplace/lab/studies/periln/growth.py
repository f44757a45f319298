"""Whether a positive quantity grows along the layers as a line does or as an exponential."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

FLOOR = 1e-3
"""A relative error that is good enough: below a thousandth, one curve is no better than another."""
ROUNDS, CANDIDATES = 4, 801


def log_ratio(above: float, below: float, base: float) -> float:
    """The logarithm of a ratio of positive numbers; NaN where it has none."""
    return math.log(above / below, base) if 0 < below < math.inf and 0 < above < math.inf else math.nan


def linear_advantage(values: Sequence[float]) -> float:
    """Decades by which the error of the best exponential exceeds that of the best line; negative where it is smaller.

    Both have two parameters, and both errors are root mean squares of the relative deviation (of logarithms), so that
    neither curve is judged by its largest values alone.

    Args:
        values: One per layer.

    Example:
        >>> linear_advantage([1.0, 2.0, 3.0, 4.0, 5.0]) > 1, linear_advantage([1.0, 2.0, 4.0, 8.0, 16.0]) < -1
        (True, True)
    """
    if not all(math.isfinite(value) and value > 0 for value in values):
        return math.nan
    logs = np.log(np.asarray(values, dtype=np.float64))
    return log_ratio(max(exponential_error(logs), FLOOR), max(linear_error(logs), FLOOR), 10)


def exponential_error(logs: np.ndarray) -> float:
    """The error of ``a exp(k l)``: a straight line through the logarithms."""
    at = np.arange(len(logs))
    slope, offset = np.polyfit(at, logs, 1)
    return float(np.sqrt(np.mean((logs - offset - slope * at) ** 2)))


def linear_error(logs: np.ndarray) -> float:
    """The error of the best line that is positive at every layer."""
    along = np.linspace(0, 1, len(logs))
    # Up to a factor a line is p at its first layer and 1 - p at its last; p is searched on ever finer grids.
    low, high, best = 0.0, 1.0, math.inf
    for _ in range(ROUNDS):
        first = np.linspace(low, high, CANDIDATES)[1:-1, None]
        left = logs - np.log(first + (1 - 2 * first) * along)
        errors = left.std(axis=1)
        found = int(np.argmin(errors))
        best = min(best, float(errors[found]))
        step = (high - low) / (CANDIDATES - 1)
        low, high = max(0.0, float(first[found, 0]) - step), min(1.0, float(first[found, 0]) + step)
    return best
