"""Critical values of simultaneous intervals, their power, and the number of seeds that separates two edits."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from normplace.lab.trials.intervals import CONFIDENCE

LEVEL = 1 - CONFIDENCE
POWER = 0.8
"""Probability of separating two edits that the number of seeds is planned for."""
HORIZON = 8
"""Numbers of seeds are extrapolated up to this multiple of those measured; noise dominates larger ones."""
_NODES = 256


def sidak_level(comparisons: int, level: float = LEVEL) -> float:
    """Two-sided level of one of several comparisons that together have a level."""
    return 1 - (1 - level) ** (1 / comparisons)


def critical_value(seeds: int, comparisons: int, level: float = LEVEL) -> float:
    """Half width of a simultaneous interval, in standard errors of the difference.

    Args:
        seeds: Number of paired seeds of the difference.
        comparisons: Number of differences that are covered simultaneously.
        level: Probability that some interval does not contain its true difference.
    """
    return _quantile(seeds - 1, sidak_level(comparisons, level))


def power(effect: float, seeds: int, comparisons: int = 1) -> float:
    """Probability that seeds separate two edits.

    Args:
        effect: Mean difference divided by the standard deviation of the differences.
        seeds: Number of paired seeds.
        comparisons: Number of differences that are covered simultaneously.
    """
    from scipy.special import ndtr

    threshold = critical_value(seeds, comparisons)
    return float(ndtr(abs(effect) * math.sqrt(seeds) - threshold * _relative_deviations(seeds - 1)).mean())


@cache
def detectable_effect(seeds: int, comparisons: int = 1) -> float:
    """Smallest mean difference that seeds separate with a probability of 80%, in standard deviations.

    Args:
        seeds: Number of paired seeds.
        comparisons: Number of differences that are covered simultaneously.
    """
    low, high = 0.0, 1.0
    while power(high, seeds, comparisons) < POWER:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, seeds, comparisons) < POWER else (low, middle)
    return high


def seeds_needed(estimate: float, deviation: float, most: int, comparisons: int = 1) -> int | None:
    """Smallest number of seeds that separates a difference with a probability of 80%; None if it is above ``most``.

    Args:
        estimate: Mean difference.
        deviation: Standard deviation of the differences.
        most: Largest number of seeds.
        comparisons: Number of differences that are covered simultaneously.

    Examples:
        >>> seeds_needed(1.0, 1.0, 40), seeds_needed(0.1, 1.0, 40)
        (10, None)
    """
    if most < 2 or not estimate:
        return None
    if not deviation:
        return 2
    effect = abs(estimate) / deviation
    low, high = 1, most  # the detectable effect falls with the seeds: bisect
    if detectable_effect(high, comparisons) > effect:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if detectable_effect(middle, comparisons) > effect:
            low = middle
        else:
            high = middle
    return high


@cache
def _quantile(degrees: int, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 1 - level / 2))


@cache
def _relative_deviations(degrees: int) -> NDArray[np.float64]:
    """Equally probable standard deviations of samples, relative to the true one."""
    from scipy.special import gammaincinv

    probabilities = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(2 * gammaincinv(degrees / 2, probabilities) / degrees)
