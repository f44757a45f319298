"""Whether a positive quantity grows linearly or exponentially over the layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

FLOOR = 1e-3
"""Relative error below which fits count as equally good."""
ROUNDS, CANDIDATES = 4, 801


def log_ratio(above: float, below: float, base: float) -> float:
    """Logarithm of a ratio of positive finite numbers; NaN for others."""
    return math.log(above / below, base) if 0 < below < math.inf and 0 < above < math.inf else math.nan


def linear_advantage(values: Sequence[float]) -> float:
    """log10 of the error of the best exponential over that of the best line; negative if the exponential fits better.

    Both have two parameters, and both errors are RMS deviations of logarithms, so that the largest values do not
    dominate.

    Examples:
        >>> linear_advantage([1.0, 2.0, 3.0, 4.0, 5.0]) > 1, linear_advantage([1.0, 2.0, 4.0, 8.0, 16.0]) < -1
        (True, True)
    """
    if not all(math.isfinite(value) and value > 0 for value in values):
        return math.nan
    logs = np.log(np.asarray(values, dtype=np.float64))
    return log_ratio(max(exponential_error(logs), FLOOR), max(linear_error(logs), FLOOR), 10)


def exponential_error(logs: np.ndarray) -> float:
    """Error of the best ``a exp(k l)``: a straight line through the logarithms."""
    layers = np.arange(len(logs))
    slope, offset = np.polyfit(layers, logs, 1)
    return float(np.sqrt(np.mean((logs - offset - slope * layers) ** 2)))


def linear_error(logs: np.ndarray) -> float:
    """Error of the best line that is positive at every layer."""
    position = np.linspace(0, 1, len(logs))
    # Up to a factor, a line is p at the first layer and 1 - p at the last; p is searched on ever finer grids.
    low, high, best = 0.0, 1.0, math.inf
    for _ in range(ROUNDS):
        first = np.linspace(low, high, CANDIDATES)[1:-1, None]
        residuals = logs - np.log(first + (1 - 2 * first) * position)
        errors = residuals.std(axis=1)
        index = int(np.argmin(errors))
        best = min(best, float(errors[index]))
        step = (high - low) / (CANDIDATES - 1)
        low, high = max(0.0, float(first[index, 0]) - step), min(1.0, float(first[index, 0]) + step)
    return best
