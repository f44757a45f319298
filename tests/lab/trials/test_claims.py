"""Checks, gates and verdicts."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from scipy.stats import t
from tests.lab.trials.claim_cases import CLEAR, EQUAL, FAR, HIGH, LOW, OPEN, SIGN, claim, measure, records_of

from normplace.lab.trials.claims import (
    Check,
    State,
    Verdict,
    judge,
    sign_and_size,
)
from normplace.lab.trials.intervals import Bootstrap
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord


@pytest.mark.parametrize(
    ("values", "checks", "verdict"),
    [
        (CLEAR, (HIGH,), Verdict.REPRODUCED),
        ([0, 0.1, 0.2, 0, 0], (HIGH,), Verdict.NOT_REPRODUCED),
        (CLEAR, (HIGH, LOW), Verdict.MIXED),
        (OPEN, (HIGH, SIGN), Verdict.PARTLY),
        (OPEN, (HIGH, FAR), Verdict.NOT_REPRODUCED),  # one open, one refuted
        (CLEAR[:4], (HIGH,), Verdict.NOT_TESTED),
        ([], (HIGH,), Verdict.NOT_TESTED),
        (OPEN, (HIGH,), Verdict.UNDECIDED),  # the mean passes, its interval does not
        ([2, 2, 2, 2, None], (HIGH,), Verdict.NOT_REPRODUCED),  # a number that was not finite passes nothing
    ],
)
def test_verdicts(values, checks, verdict):
    assert judge(claim(*checks), records_of(values)).verdict == verdict


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([1.0, 1.001, 0.999, 1.0, 1.0], State.FAILED),  # far above the margin, though above its lower end
        ([0.001, 0, -0.001, 0, 0], State.PASSED),
        ([0.05, 0, -0.001, 0, 0.04], State.OPEN),
        ([-1.0, -1.001, -0.999, -1.0, -1.0], State.FAILED),
    ],
)
def test_an_equivalence_is_one_check(values, state):
    judgement = judge(claim(EQUAL), records_of(values))
    assert [measured.state for measured in judgement.measurements] == [state]
    assert EQUAL.threshold == "-0.03 to 0.03"


def test_no_effect_fails_a_check_of_direction():
    assert judge(claim(SIGN), records_of([0.0] * 5)).verdict == Verdict.NOT_REPRODUCED
    assert (
        judge(claim(Check("below", measure("value"), below=0)), records_of([0.0] * 5)).verdict == Verdict.NOT_REPRODUCED
    )


def test_a_claim_about_a_direction_has_checks_of_sign_and_size():
    sign, size = sign_and_size("gain", measure("value"), at_least=0.05)
    small = judge(claim(sign, size), records_of([0.02, 0.021, 0.019, 0.02, 0.02]))
    assert [measured.state for measured in small.measurements] == [State.PASSED, State.FAILED]
    assert (small.verdict, size.size, sign.size) == (Verdict.MIXED, True, False)
    falls = sign_and_size("ratio", measure("value"), no_effect=1, at_most=0.5)
    assert [check.threshold for check in falls] == ["< 1", "≤ 0.5"]


@pytest.mark.parametrize(
    ("baseline", "state", "verdict"),
    [
        ([0.9, 0.91, 0.9, 0.9, 0.9], State.PASSED, Verdict.REPRODUCED),
        ([0.0, 0.01, 0.0, 0.0, 0.0], State.VOID, Verdict.VOID),
        ([0.9, 0.1, 0.9, 0.2, 0.9], State.VOID, Verdict.VOID),  # not shown to have learned
        ([None] * 5, State.VOID, Verdict.VOID),
        ([], State.VOID, Verdict.NOT_TESTED),
    ],
)
def test_a_check_is_void_unless_its_gates_pass(baseline, state, verdict):
    gate = Check("baseline", measure("baseline"), at_least=0.8)
    records = records_of(CLEAR) + [
        replace(record, hash=f"b{record.seed}") for record in records_of(baseline, "baseline")
    ]
    for gated in (claim(replace(HIGH, gates=(gate,))), replace(claim(HIGH), gates=(gate,))):
        judgement = judge(gated, records)
        assert (judgement.measurements[0].state, judgement.verdict) == (state, verdict)
        assert judgement.measurements[0].ungated == State.PASSED
        assert [measured.check.label for measured in judgement.gates] == ["baseline"]


def test_a_claim_with_a_void_check_is_not_reproduced():
    gate = Check("baseline", measure("value"), at_least=50)
    for other, verdict in ((SIGN, Verdict.PARTLY), (FAR, Verdict.NOT_REPRODUCED), (LOW, Verdict.NOT_REPRODUCED)):
        assert judge(claim(replace(HIGH, gates=(gate,)), other), records_of(CLEAR)).verdict == verdict


def test_checks_added_after_a_result_do_not_count():
    later = replace(FAR, added_after="it looked interesting")
    judgement = judge(claim(HIGH, later), records_of(CLEAR))
    assert judgement.verdict == Verdict.REPRODUCED
    assert [measured.state for measured in judgement.later] == [State.FAILED]
    assert judgement.counts == {State.PASSED: 1}
    with pytest.raises(AssertionError, match="declared before"):
        claim(later)


def test_seeds_to_decide_an_open_check():
    (measured,) = judge(claim(HIGH), records_of(OPEN)).measurements
    mean, deviation = statistics.fmean(OPEN), statistics.stdev(OPEN)
    n = measured.seeds_to_decide
    half = [t.ppf(0.975, k - 1) * deviation / math.sqrt(k) for k in (n, n - 1)]
    assert half[0] < mean - 1 < half[1]
    (level,) = judge(claim(HIGH), records_of([0.9, 1.1, 0.8, 1.2, 1.0])).measurements
    assert level.seeds_to_decide is None  # the mean is at the threshold
    clusters = replace(HIGH, interval=Bootstrap(), at_least=-0.05)
    (few,) = judge(replace(claim(clusters), seeds=3), records_of([1.0, 0, 0])).measurements
    assert (few.state, few.seeds_to_decide) == (State.OPEN, Bootstrap.least)


@pytest.mark.parametrize(
    "fields", [{}, {"at_least": 0, "above": 0}, {"above": 0, "below": 1}, {"at_least": 1, "at_most": 0}]
)
def test_a_check_with_several_thresholds_is_rejected(fields):
    with pytest.raises(AssertionError):
        Check("check", measure("value"), **fields)


def test_a_list_and_successful_records_give_the_same_judgement():
    records = records_of(CLEAR)
    assert judge(claim(HIGH), SuccessfulRecords(records)) == judge(claim(HIGH), records)


def test_failed_trials_do_not_count():
    records = records_of([2, 2, 2, 2, 2])
    failed = [TrialRecord("sample", "lines", "full", "f", {"seed": 9}, 9, "failed", {"value": -100.0})]
    judgement = judge(claim(HIGH), records + failed)
    assert judgement.verdict == Verdict.REPRODUCED
    assert str(judgement.measurements[0]) == "2 [2, 2], n=5"
