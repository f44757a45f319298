"""Critical values of simultaneous intervals, their power, and the number of seeds that separates two edits."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache

import numpy as np
from numpy.typing import NDArray

from normplace.lab.trials.intervals import CONFIDENCE

LEVEL = 1 - CONFIDENCE
POWER = 0.8
"""Probability of separating two edits that the number of seeds is planned for."""
RANGE = 0.8
"""Coverage of the interval of the true effect from which the range of the number of seeds follows."""
HORIZON = 8
"""Numbers of seeds are extrapolated up to this multiple of those measured; noise dominates larger ones."""
LIKELIEST = 0.25
"""Largest probability of a difference other than zero between two independent scores with the same distribution.

The scores that differ by it form paths, and a path has no three neighbours: the theorem of Motzkin and Straus (1965).
"""
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


def equal_seeds_needed(comparisons: int, level: float = LEVEL) -> int:
    """Fewest seeds that separate two edits if all show the same difference, so that their spread is not measured.

    Two equal edits with the scores 0 and 1 show it with a probability of at most 2 · 4⁻ⁿ.

    Args:
        comparisons: Number of differences that are covered simultaneously.
        level: Probability that some difference is wrongly separated.

    Examples:
        >>> equal_seeds_needed(1), equal_seeds_needed(2), equal_seeds_needed(15)
        (3, 4, 5)
    """
    return math.ceil(math.log(sidak_level(comparisons, level) / 2, LIKELIEST))


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
        fewest = equal_seeds_needed(comparisons)
        return fewest if fewest <= most else None
    effect, tried = abs(estimate) / deviation, range(2, most + 1)
    # The detectable effect falls with the seeds.
    index = bisect_left(tried, True, key=lambda seeds: detectable_effect(seeds, comparisons) <= effect)
    return tried[index] if index < len(tried) else None


def effect_range(estimate: float, deviation: float, seeds: int) -> tuple[float, float]:
    """Interval of the true effect, in standard deviations of the difference and in the direction of the estimate.

    The ends are the noncentralities of Student's distribution with which the measured ratio, or a larger one, and this
    one or a smaller one, have a probability of half of what the interval leaves out.

    Args:
        estimate: Mean difference.
        deviation: Standard deviation of the differences, above zero.
        seeds: Number of paired seeds.
    """
    from scipy.special import ndtr

    ratio = abs(estimate) / deviation * math.sqrt(seeds)
    scaled = ratio * _relative_deviations(seeds - 1)

    def end(probability: float) -> float:
        low, high = -10.0, 10.0 + 10 * ratio  # the probability of a smaller ratio falls with the noncentrality
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if ndtr(scaled - middle).mean() > probability else (low, middle)
        return low / math.sqrt(seeds)

    return end((1 + RANGE) / 2), end((1 - RANGE) / 2)


def seeds_range(
    estimate: float, deviation: float, seeds: int, most: int, comparisons: int = 1
) -> tuple[int | None, int | None]:
    """Numbers of seeds needed at the ends of the interval of the true effect; None if one is above ``most``.

    Args:
        estimate: Mean difference.
        deviation: Standard deviation of the differences.
        seeds: Number of paired seeds that measured them.
        most: Largest number of seeds.
        comparisons: Number of differences that are covered simultaneously.

    Examples:
        >>> seeds_range(1.0, 1.0, seeds=5, most=40)
        (6, None)
    """
    if seeds < 2 or not estimate or not deviation:
        return None, None
    low, high = effect_range(estimate, deviation, seeds)
    fewest = seeds_needed(high, 1.0, most, comparisons) if high > 0 else None
    return fewest, seeds_needed(low, 1.0, most, comparisons) if low > 0 else None


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
