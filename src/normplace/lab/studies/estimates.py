"""Statistics with their intervals as short text, for headlines."""

from __future__ import annotations

from normplace.lab.report.text import count
from normplace.lab.trials.intervals import STUDENT, Interval
from normplace.lab.trials.per_seed import PerSeed


def estimate_text(values: PerSeed, number: str = ".2f", unit: str = "", interval: Interval = STUDENT) -> str:
    """The statistic of one number per seed with its 95% confidence interval, if it has one.

    Example:
        >>> estimate_text(PerSeed({0: 0.5, 1: 0.52, 2: 0.51}))
        '0.51 [0.49, 0.53]'
    """
    estimate, low, high = interval(list(values.values()))
    if len(values) < interval.least:
        return f"{estimate:{number}}{unit}"
    return f"{estimate:{number}}{unit} [{low:{number}}, {high:{number}}]"


def seeds_text(values: PerSeed) -> str:
    """Number of seeds."""
    return count(len(values), "seed")
