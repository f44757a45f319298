"""Confidence intervals for different kinds of numbers; each check declares the kind that it uses.

Every interval is two-sided with a confidence of 95%, so a one-sided check is wrong at most 2.5% of the time if the
assumptions of the interval are met. With fewer than ``least`` seeds an interval is unbounded and cannot decide a check.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from normplace.lab.trials.results import TrialRecord

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2
RESAMPLES = 5_000


class Interval(ABC):
    """A statistic of one value per seed, with its 95% confidence interval."""

    name: ClassVar[str]
    statistic: ClassVar[str] = "mean"
    least: ClassVar[int] = 2

    def __call__(self, values: Sequence[float]) -> tuple[float, float, float]:
        """Compute the statistic and both ends of its interval.

        The interval is unbounded with fewer than ``least`` values. Without values, or if one is not finite, the
        statistic is NaN.
        """
        numbers = [float(value) for value in values]
        if not numbers or not all(map(math.isfinite, numbers)):
            return math.nan, -math.inf, math.inf
        if len(numbers) < self.least:
            return self.estimate(numbers), -math.inf, math.inf
        low, high = self.ends(numbers)
        return self.estimate(numbers), low, high

    def expected(self, values: Sequence[float], n: int) -> tuple[float, float, float]:
        """Estimate the interval of n seeds that scatter like those measured."""
        ordered = sorted(values)
        return self([ordered[int((index + 0.5) / n * len(ordered))] for index in range(n)])

    def of(self, records: Sequence[TrialRecord]) -> Interval:
        """Adapt the interval to the records; most kinds return themselves."""
        return self

    def estimate(self, values: Sequence[float]) -> float:
        """Compute the statistic: the mean, unless a subclass overrides it."""
        return math.fsum(values) / len(values)

    @abstractmethod
    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Compute both ends from at least ``least`` finite values."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Student(Interval):
    """Student's interval of the mean over seeds, for numbers with a roughly symmetric distribution.

    Args:
        low: Smallest possible value; the interval stays above it.
        high: Largest possible value; the interval stays below it.
        trials: For an accuracy, the number of trials per seed. The interval is then never narrower than the exact
            interval of all trials together: five seeds without a success do not show that the probability is 0.
    """

    name: ClassVar[str] = "Student"
    low: float = -math.inf
    high: float = math.inf
    trials: int = 0

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Student's interval, cut to the range, and widened to the exact interval of the trials."""
        return self._around(self.estimate(values), _deviation(values), len(values))

    def expected(self, values: Sequence[float], n: int) -> tuple[float, float, float]:
        """Compute the interval of n seeds with the same mean and standard deviation."""
        if len(values) < self.least:
            return self(values)
        mean = self.estimate(values)
        return mean, *self._around(mean, _deviation(values), n)

    def _around(self, mean: float, deviation: float, n: int) -> tuple[float, float]:
        half = _student_quantile(n - 1) * deviation / math.sqrt(n)
        low, high = max(mean - half, self.low), min(mean + half, self.high)
        if self.trials:
            exact = exact_share(round(mean * n * self.trials), n * self.trials)
            low, high = min(low, exact[0]), max(high, exact[1])
        return low, high


@dataclass(frozen=True)
class Bootstrap(Interval):
    """Bootstrap interval of the mean over seeds, for skewed numbers and for numbers with two clusters.

    The interval stays within the observed range. The percentiles are widened as proposed by Hesterberg (2015, arXiv
    1411.5279), so that it is not narrower than Student's for few seeds; below five seeds resampling cannot resolve the
    widened percentiles. Up to six seeds all resamples are enumerated; with more seeds they are drawn from a generator
    with a fixed seed.
    """

    name: ClassVar[str] = "bootstrap"
    least: ClassVar[int] = 5

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Compute the widened percentiles of the means of all resamples."""
        from scipy.special import ndtr

        n = len(values)
        tail = float(ndtr(-math.sqrt(n / (n - 1)) * _student_quantile(n - 1)))
        low, high = np.quantile(np.asarray(values)[_resamples(n)].mean(1), [tail, 1 - tail], method="inverted_cdf")
        return float(low), float(high)


@dataclass(frozen=True)
class OrderStatistics(Interval):
    """Interval of the median between two order statistics, for heavy tails; it makes no assumption about their shape.

    The range of five seeds contains the median with a probability of 93.75%, so six seeds are the fewest that reach a
    confidence of 95%.
    """

    name: ClassVar[str] = "order statistics"
    statistic: ClassVar[str] = "median"
    least: ClassVar[int] = 6

    def estimate(self, values: Sequence[float]) -> float:
        """The median."""
        return float(np.median(values))

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Find the innermost pair of order statistics with the confidence."""
        from scipy.special import bdtr

        ordered, n = np.sort(values), len(values)
        # The median is outside an end if at most ``outside`` values are on that side of it.
        outside = max(k for k in range(n // 2) if bdtr(k, n, 0.5) <= TAIL)
        return float(ordered[outside]), float(ordered[n - 1 - outside])


@dataclass(frozen=True)
class SeedShare(Interval):
    """Exact (Clopper-Pearson) interval of the probability that a seed passes; values are 1 or 0.

    Six seeds that agree are the fewest that show a probability to be above or below one half.
    """

    name: ClassVar[str] = "exact, seeds"
    statistic: ClassVar[str] = "share of seeds"
    least: ClassVar[int] = 1

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Compute the ends from the number of seeds that pass."""
        assert set(values) <= {0.0, 1.0}, "a seed passes or does not"
        return exact_share(round(sum(values)), len(values))


@dataclass(frozen=True)
class TrialShare(Interval):
    """Exact (Clopper-Pearson) interval of the success probability of the measured networks, over all their trials.

    It does not generalize to other seeds: use it for gates, which ask whether these networks learned, and for networks
    that are not trained.

    Args:
        trials: Number of trials per seed, or a function that reads it from the records.
    """

    name: ClassVar[str] = "exact, trials"
    statistic: ClassVar[str] = "share of trials"
    least: ClassVar[int] = 1
    trials: int | Callable[[Sequence[TrialRecord]], int]

    def of(self, records: Sequence[TrialRecord]) -> Interval:
        """Read the number of trials from the records."""
        return TrialShare(self.trials(records)) if callable(self.trials) else self

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Compute the ends from the number of successful trials."""
        assert isinstance(self.trials, int)
        return exact_share(round(float(np.sum(values)) * self.trials), len(values) * self.trials)


@dataclass(frozen=True)
class Counted(Interval):
    """The observed range, for deterministic counts such as bytes or parameters.

    Values that differ by more than 1% are not deterministic: their interval is unbounded.
    """

    name: ClassVar[str] = "counted"
    least: ClassVar[int] = 1

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the smallest and the largest value, if they agree."""
        low, high = min(values), max(values)
        return (low, high) if high - low <= 0.01 * max(map(abs, values)) else (-math.inf, math.inf)


STUDENT = Student()
"""The usual kind of interval."""


def exact_share(successes: int, trials: int) -> tuple[float, float]:
    """Compute the Clopper-Pearson interval of a probability."""
    from scipy.special import betaincinv

    low = float(betaincinv(successes, trials - successes + 1, TAIL)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - TAIL)) if successes < trials else 1.0
    return low, high


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1))


@cache
def _student_quantile(degrees: int) -> float:
    """Quantile that bounds 95% of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 1 - TAIL))


@lru_cache(maxsize=2)
def _resamples(n: int) -> NDArray[np.int32]:
    """Indices of resamples of n values, one resample per row."""
    if n <= 6:
        return np.array(list(itertools.product(range(n), repeat=n)), dtype=np.int32)
    return np.random.default_rng(0).integers(0, n, (RESAMPLES, n), dtype=np.int32)
