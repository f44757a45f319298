"""Power and numbers of seeds, against closed forms and simulations."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from normplace.lab.compare.power import (
    critical_value,
    detectable_effect,
    effect_range,
    power,
    seeds_needed,
    seeds_range,
)


@pytest.mark.parametrize("comparisons", [1, 3])
def test_critical_values_are_students_with_a_sidak_correction(comparisons):
    assert critical_value(5, comparisons) == pytest.approx(stats.t.ppf(0.5 + 0.5 * 0.95 ** (1 / comparisons), 4))


@pytest.mark.parametrize(("effect", "seeds", "comparisons"), [(1.0, 5, 1), (0.6, 20, 3), (4.0, 3, 6)])
def test_power_is_that_of_the_noncentral_t(effect, seeds, comparisons):
    threshold = critical_value(seeds, comparisons)
    expected = stats.nct.sf(threshold, seeds - 1, effect * math.sqrt(seeds))
    assert power(effect, seeds, comparisons) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("comparisons", [1, 5])
def test_seeds_needed_is_the_smallest_number_with_the_power(comparisons):
    needed = seeds_needed(-0.7, 1.0, 200, comparisons)
    assert needed is not None
    assert power(0.7, needed - 1, comparisons) < 0.8 <= power(0.7, needed, comparisons)
    assert seeds_needed(-0.7, 1.0, needed - 1, comparisons) is None
    assert detectable_effect(needed, comparisons) <= 0.7


def test_seeds_needed_without_a_difference_or_without_noise():
    assert seeds_needed(0.0, 1.0, 200) is None
    assert seeds_needed(math.nan, math.nan, 0) is None
    assert seeds_needed(1.0, 0.0, 200) == 3  # two seeds with the same difference do not measure its spread
    assert seeds_needed(1.0, 0.0, 2) is None


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("ratio", [0.3, 2.0, 6.0])
def test_the_range_of_the_effect_inverts_the_noncentral_t_distribution(seeds, ratio):
    low, high = (end * math.sqrt(seeds) for end in effect_range(-ratio / math.sqrt(seeds), 1.0, seeds))
    # 256 equally probable deviations replace the integral over all of them, with an error below 1/256.
    assert stats.nct.cdf(ratio, seeds - 1, low) == pytest.approx(0.9, abs=1 / 256)
    assert stats.nct.cdf(ratio, seeds - 1, high) == pytest.approx(0.1, abs=1 / 256)


def test_the_range_of_seeds_contains_the_number_from_the_estimate():
    for estimate in (0.3, 1.0, 3.0):
        needed, (low, high) = seeds_needed(estimate, 1.0, 1000), seeds_range(estimate, 1.0, 5, 1000)
        assert low is not None and low <= needed <= (high or 1000)
    assert seeds_range(0.0, 1.0, 5, 40) == seeds_range(1.0, 1.0, 1, 40) == (None, None)
