"""Differences, verdicts and numbers of seeds against closed forms and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from normplace.lab.compare.statistics import Verdict, against_baseline, best_against_each, difference, ranking


def by_seed(*values):
    return dict(enumerate(values))


def compared(own, other, better="smaller", comparisons=1):
    scores = {"own": by_seed(*own), "other": by_seed(*other)}
    return difference("own", "other", scores, better, comparisons)


@pytest.mark.parametrize("comparisons", [1, 4])
def test_the_interval_is_students_with_a_sidak_correction(comparisons):
    own, other = [1.0, 2.5, 2.0, 4.0], [1.5, 2.0, 3.0, 4.6]
    one = compared(own, other, comparisons=comparisons)
    expected = stats.ttest_rel(own, other).confidence_interval(0.95 ** (1 / comparisons))
    assert (one.low, one.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert one.estimate == pytest.approx(-0.4)
    assert one.verdict is Verdict.TIED


def test_the_verdict_depends_on_which_direction_is_better():
    own, other = [1.0, 1.1, 1.0, 1.2], [2.0, 2.2, 2.1, 2.2]
    assert compared(own, other).verdict is Verdict.BETTER
    assert compared(other, own).verdict is Verdict.WORSE
    assert compared(own, other, better="larger").verdict is Verdict.WORSE


def test_only_shared_seeds_are_compared():
    scores = {"own": {0: 1.0, 1: 2.0, 7: 100.0}, "other": {1: 1.0, 0: 0.5, 9: -100.0}}
    one = difference("own", "other", scores, "smaller", 1)
    assert (one.seeds, one.estimate) == (2, 0.75)


@pytest.mark.parametrize("seeds", [0, 1])
def test_fewer_than_two_seeds_have_no_interval(seeds):
    one = compared([1.0] * seeds, [2.0] * seeds)
    assert (one.low, one.high, one.verdict) == (-math.inf, math.inf, Verdict.TIED)
    assert (one.seeds_needed, one.most_seeds) == (None, 0)


def test_equal_numbers_are_tied_and_equal_differences_are_not():
    assert compared([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).verdict is Verdict.TIED
    assert compared([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]).verdict is Verdict.BETTER


@pytest.mark.parametrize(
    ("seeds", "comparisons", "decides"), [(2, 1, False), (3, 1, True), (3, 2, False), (4, 2, True)]
)
def test_few_seeds_with_the_same_difference_measure_no_spread(seeds, comparisons, decides):
    # 0.65 - 0.6 and 0.7 - 0.65 differ by rounding
    one = compared([0.65, 0.7, 0.6, 0.65][:seeds], [0.6, 0.65, 0.55, 0.6][:seeds], "larger", comparisons)
    assert one.verdict is (Verdict.BETTER if decides else Verdict.TIED)
    assert one.no_spread is not decides
    assert math.isfinite(one.low) is math.isfinite(one.high) is decides


@pytest.mark.parametrize("family", [against_baseline, best_against_each])
@pytest.mark.parametrize("edits", [2, 4])
@pytest.mark.parametrize("seeds", [2, 3])
def test_equal_edits_with_a_coarse_accuracy_are_rarely_separated(family, edits, seeds):
    rng = np.random.default_rng(0)
    wrong, drawn = 0, rng.binomial(20, 0.9, (1000, edits, seeds)) / 20
    for table in drawn:
        scores = {str(edit): by_seed(*map(float, row)) for edit, row in enumerate(table)}
        reference = "0" if family is against_baseline else ranking(scores, better="larger")[0]
        verdicts = {one.verdict for one in family(scores, reference, better="larger").values()}
        wrong += verdicts != {Verdict.TIED}
    assert wrong <= 0.05 * len(drawn) + 3 * math.sqrt(0.05 * 0.95 * len(drawn))


def share_separated(family, tables):
    """Share of tables of equal edits in which some verdict of a family is not a tie."""
    wrong = 0
    for table in tables:
        scores = {str(edit): by_seed(*map(float, row)) for edit, row in enumerate(table)}
        reference = "0" if family is against_baseline else ranking(scores, better="larger")[0]
        wrong += any(one.verdict is not Verdict.TIED for one in family(scores, reference, better="larger").values())
    return wrong / len(tables)


@pytest.mark.parametrize("family", [against_baseline, best_against_each])
@pytest.mark.parametrize(("edits", "seeds"), [(2, 2), (4, 3), (6, 3), (8, 4)])
def test_equal_edits_that_train_in_one_of_two_ways_are_rarely_separated(family, edits, seeds):
    rng = np.random.default_rng(edits)
    shape = (250, edits, seeds)
    tables = rng.normal(size=shape) + 20 * rng.integers(0, 2, shape)
    assert share_separated(family, tables) <= 0.05


@pytest.mark.parametrize(("accuracy", "samples", "edits", "seeds"), [(0.5, 5, 4, 4), (0.5, 2, 2, 8), (0.7, 10, 4, 4)])
def test_repeated_differences_widen_the_interval_of_a_coarse_accuracy(accuracy, samples, edits, seeds):
    tables = np.random.default_rng(3).binomial(samples, accuracy, (1500, edits, seeds)) / samples
    assert share_separated(against_baseline, tables) <= 0.05 + 1.5 * math.sqrt(0.05 * 0.95 / 1500)


def test_a_large_effect_is_found_with_three_seeds_beside_an_unstable_edit():
    scores = {
        "a": by_seed(3.0, 3.02, 3.01),
        "b": by_seed(3.51, 3.5, 3.53),
        "c": by_seed(3.03, 3.0, 3.02),
        "d": by_seed(9.0, 4.0, 5.5),
    }
    family = against_baseline(scores, "a", better="smaller")
    assert [family[name].verdict for name in "bcd"] == [Verdict.WORSE, Verdict.TIED, Verdict.TIED]


@pytest.mark.parametrize(
    ("own", "other", "verdict"),
    [
        ([None] * 3, [1.0] * 3, Verdict.WORSE),  # always against never, from three seeds on
        ([1.0] * 3, [None] * 3, Verdict.BETTER),
        ([None] * 2, [1.0] * 2, Verdict.TIED),
        ([None] * 3, [None] * 3, Verdict.TIED),
        ([None, 1.0, 1.1, 1.0, 1.05], [2.0, 2.0, 2.1, 2.0, 2.05], Verdict.TIED),  # better where it trains
        ([None, 2.0, 2.1, 2.0, 2.05], [1.0, 1.0, 1.1, 1.0, 1.05], Verdict.WORSE),
        ([None] * 7 + [1.0, 1.1, 1.2], [1.0] * 7 + [1.1, 1.0, 1.2], Verdict.WORSE),
    ],
)
def test_divergences_count(own, other, verdict):
    assert compared(own, other).verdict is verdict


def test_equal_edits_that_diverge_at_random_are_rarely_separated():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(1500):
        seeds, rate = int(rng.integers(3, 8)), rng.uniform(0.1, 0.9)
        own, other = ([None if rng.random() < rate else float(rng.normal()) for _ in range(seeds)] for _ in range(2))
        wrong += compared(own, other).verdict is not Verdict.TIED
    assert wrong / 1500 < 0.05


def test_more_edits_need_more_seeds_to_show_that_one_always_diverges():
    for seeds, verdict in ((3, Verdict.TIED), (4, Verdict.WORSE)):
        scores = {"a": by_seed(*[1.0] * seeds), "b": by_seed(*[None] * seeds), "c": by_seed(*[1.0] * seeds)}
        assert against_baseline(scores, "a", better="smaller")["b"].verdict is verdict


def test_the_best_family_counts_every_pair():
    rng = np.random.default_rng(1)
    scores = {name: by_seed(*rng.normal(size=4)) for name in "abcd"}
    assert {one.comparisons for one in against_baseline(scores, "a", better="smaller").values()} == {3}
    assert {one.comparisons for one in best_against_each(scores, "b", better="smaller").values()} == {6}


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_family_is_covered_simultaneously(seeds):
    rng = np.random.default_rng(seeds)
    missed = 0
    for _ in range(600):
        spreads = rng.permutation([1.0, 1.0, 2.0, 6.0])
        scores = {name: by_seed(*rng.normal(0, spread, seeds)) for name, spread in zip("abcd", spreads, strict=True)}
        missed += any(
            one.verdict is not Verdict.TIED for one in against_baseline(scores, "a", better="smaller").values()
        )
    assert missed / 600 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_ranking_puts_divergences_last():
    scores = {
        "fair": by_seed(2.0, 2.0),
        "gone": by_seed(None, None),
        "good": by_seed(1.0, 1.2),
        "half": by_seed(None, 0.1),
    }
    assert ranking(scores, better="smaller") == ["good", "fair", "half", "gone"]
    assert ranking(scores, better="larger") == ["fair", "good", "half", "gone"]


def test_ranking_compares_edits_with_different_seeds():
    scores = {"a": by_seed(1.0, 1.1, 5.0), "b": by_seed(1.2, 1.3)}  # the third seed is a difficult one
    assert ranking(scores, better="smaller") == ["a", "b"]
    # An edit with one seed does not reduce the comparison of the others to that seed.
    scores = {"a": by_seed(1.0, 2.0, 2.0), "b": by_seed(1.1, 1.5, 1.5), "c": by_seed(1.05)}
    assert ranking(scores, better="smaller") == ["b", "a", "c"]
    scores = {"a": {0: 2.0}, "b": {1: 1.0}}
    assert ranking(scores, better="smaller") == ["b", "a"]
