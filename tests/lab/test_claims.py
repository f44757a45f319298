"""Verdicts from lines, with the interval against a textbook value."""

from __future__ import annotations

import math

import pytest

from normplace.lab.claims import Check, Claim, Verdict, by_seed, interval, judge
from normplace.lab.results import Line


def lines(values, metric="value"):
    return [
        Line("sample", "lines", "full", f"h{seed}", {"seed": seed}, seed, "ok", {metric: value})
        for seed, value in enumerate(values)
    ]


def claim(*checks):
    return Claim("id", "paper", "statement", checks, seeds=5)


def measure(metric):
    return lambda rows: by_seed([row for row in rows if metric in row.metrics], metric)


HIGH = Check("high", measure("value"), at_least=1.0)
LOW = Check("low", measure("value"), at_most=1.0)
FAR = Check("far", measure("value"), at_least=50.0)


def test_student_interval():
    mean, low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    # t(0.975, 4) = 2.776445, sd = sqrt(2.5)
    assert (mean, high - mean) == pytest.approx((3.0, 2.776445 * math.sqrt(2.5 / 5)), rel=1e-6)
    assert low == pytest.approx(2 * mean - high)
    assert interval([1.0])[1:] == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("values", "checks", "verdict"),
    [
        ([2, 2.1, 1.9, 2, 2], (HIGH,), Verdict.REPRODUCED),
        ([0, 0.1, 0.2, 0, 0], (HIGH,), Verdict.NOT_REPRODUCED),
        ([2, 2.1, 1.9, 2, 2], (HIGH, LOW), Verdict.PARTLY),
        ([1.2, 3, 0.1, 2, 1], (HIGH, FAR), Verdict.NOT_REPRODUCED),  # one open, one refuted
        ([2, 2.1, 1.9, 2], (HIGH,), Verdict.NOT_TESTED),
        ([], (HIGH,), Verdict.NOT_TESTED),
        ([1.2, 3, 0.1, 2, 1], (HIGH,), Verdict.UNDECIDED),  # the mean passes, its interval does not
        ([2, 2, 2, 2, None], (HIGH,), Verdict.NOT_REPRODUCED),  # a number that was not finite passes nothing
    ],
)
def test_verdicts(values, checks, verdict):
    assert judge(claim(*checks), lines(values)).verdict == verdict


def test_failed_lines_do_not_count():
    rows = lines([2, 2, 2, 2, 2])
    failed = [Line("sample", "lines", "full", "f", {"seed": 9}, 9, "failed", {"value": -100.0})]
    judgement = judge(claim(HIGH), rows + failed)
    assert judgement.verdict == Verdict.REPRODUCED
    assert str(judgement.measurements[0]) == "2 [2, 2], n=5"


def test_a_check_that_mixes_variants_is_caught():
    with pytest.raises(AssertionError, match="selects too little"):
        by_seed(lines([1]) + lines([2]), "value")
