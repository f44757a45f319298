"""Intervals against closed forms and textbook values, and how often they contain the truth."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from normplace.lab.trials.intervals import (
    STUDENT,
    Bootstrap,
    Counted,
    OrderStatistics,
    SeedShare,
    Student,
    TrialShare,
    exact_share,
)


def test_student_interval():
    mean, low, high = STUDENT([1.0, 2.0, 3.0, 4.0, 5.0])
    # t(0.975, 4) = 2.776445, sd = sqrt(2.5)
    assert (mean, high - mean) == pytest.approx((3.0, 2.776445 * math.sqrt(2.5 / 5)), rel=1e-6)
    assert low == pytest.approx(2 * mean - high)
    assert STUDENT([1.0])[1:] == (-math.inf, math.inf)
    assert math.isnan(STUDENT([])[0])
    assert math.isnan(STUDENT([1.0, math.nan])[0])


def test_an_accuracy_stays_within_its_range():
    estimate, _, high = Student(low=0, high=1)([0.5, 1.0, 0.5])
    assert (estimate, high) == (pytest.approx(2 / 3), 1)
    assert STUDENT([0.5, 1.0, 0.5])[2] > 1
    assert Student(low=0)([0.5, 1.0, 0.5])[2] > 1


def test_equal_accuracies_still_have_an_interval():
    assert STUDENT([0.0] * 5)[1:] == (0, 0)
    low, high = Student(low=0, high=1, trials=128)([0.0] * 5)[1:]
    # Clopper-Pearson for 0 of 640: 1 - 0.025^(1/640)
    assert (low, high) == (0, pytest.approx(1 - 0.025 ** (1 / 640)))


def test_exact_intervals_of_shares():
    # Clopper and Pearson's interval of 8 successes in 10, as tables have it.
    assert exact_share(8, 10) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert exact_share(5, 5) == (pytest.approx(0.025 ** (1 / 5)), 1)
    assert SeedShare()([1.0, 1, 1, 1, 1, 1])[1] > 0.5 > SeedShare()([1.0, 1, 1, 1, 1])[1]
    assert TrialShare(40)([1.0, 0.5])[1:] == pytest.approx(exact_share(60, 80))
    with pytest.raises(AssertionError, match="passes or does not"):
        SeedShare()([0.5, 1.0])


@pytest.mark.parametrize(("n", "outside"), [(6, 0), (8, 0), (9, 1), (20, 5), (40, 13)])
def test_order_statistics_of_the_median(n, outside):
    # The number of values beyond each end, from tables of the sign test at 5%.
    values = np.random.default_rng(n).permutation(n).astype(float)
    assert OrderStatistics()(values.tolist()) == (np.median(values), outside, n - 1 - outside)


def test_too_few_seeds_give_an_unbounded_interval():
    for kind in (OrderStatistics(), Bootstrap()):
        assert kind([1.0] * (kind.least - 1))[1:] == (-math.inf, math.inf)
        assert all(map(math.isfinite, kind([1.0] * kind.least)))


def test_the_bootstrap_follows_two_clusters_and_is_deterministic():
    _, low, high = Bootstrap()([1.0, 0, 0, 0, 0])
    assert low == 0
    assert 0.6 <= high <= 1
    many = np.random.default_rng(0).random(30).tolist()
    assert Bootstrap()(many) == Bootstrap()(many)
    assert Bootstrap()(many)[1:] == pytest.approx(STUDENT(many)[1:], abs=0.02)


@pytest.mark.parametrize("n", [5, 10])
def test_the_bootstrap_is_not_narrower_than_student(n):
    """Of skewed numbers it contains the mean about as often; the plain percentiles of five do so 8% less often."""
    generator = np.random.default_rng(1)
    samples = generator.beta(20, 0.5, (800, n)).tolist()
    truth = 20 / 20.5
    student, bootstrap = (
        sum(low <= truth <= high for _, low, high in map(kind, samples)) / 800 for kind in (STUDENT, Bootstrap())
    )
    assert bootstrap >= student - 0.02


@pytest.mark.parametrize("kind", [OrderStatistics(), SeedShare()])
def test_exact_intervals_have_their_confidence(kind):
    generator = np.random.default_rng(2)
    draw, truth = (generator.standard_cauchy, 0.0) if isinstance(kind, OrderStatistics) else (None, 0.8)
    inside = 0
    for _ in range(1000):
        values = draw(9) if draw else (generator.random(9) < truth).astype(float)
        _, low, high = kind(values.tolist())
        inside += low <= truth <= high
    assert inside >= 930  # three standard deviations, 0.7% each, below 95%


def test_counted_numbers_have_their_range():
    assert Counted()([3.0, 3.0]) == (3, 3, 3)
    assert Counted()([3.0, 3.01])[1:] == (3, 3.01)
    assert Counted()([3.0, 5.0])[1:] == (-math.inf, math.inf)


@pytest.mark.parametrize("kind", [STUDENT, Bootstrap(), OrderStatistics()])
def test_more_seeds_narrow_the_expected_interval(kind):
    values = [0.1, 0.4, 0.5, 0.7, 0.9, 1.3]
    widths = [high - low for n in (6, 20, 100) for _, low, high in (kind.expected(values, n),)]
    assert all(later < earlier for earlier, later in pairwise(widths))
