from __future__ import annotations

import math

import pytest

from normplace.errors import UsageError
from normplace.lab.train.schedule import Schedule


def test_warm_up_ends_at_the_peak():
    for kind in ("cosine", "wsd", "constant"):
        rates = [Schedule(2.0, 100, kind, warm_up=4).learning_rate(step) for step in range(5)]
        assert rates == [0.5, 1.0, 1.5, 2.0, 2.0]


def test_cosine_is_the_formula():
    schedule = Schedule(3.0, 110, "cosine", warm_up=10, floor=0.1)
    for step in range(10, 110):
        expected = 0.3 + 0.5 * 2.7 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert schedule.learning_rate(step) == pytest.approx(expected, rel=1e-12)


def test_wsd_is_constant_then_decays_to_its_floor():
    schedule = Schedule(1.0, 100, "wsd", warm_up=10, decay=0.25, floor=0.2)
    assert {schedule.learning_rate(step) for step in range(10, 76)} == {1.0}
    assert [schedule.learning_rate(step) for step in (80, 99, 100)] == pytest.approx(
        [1 - 0.8 * 5 / 25, 1 - 0.8 * 24 / 25, 0.2]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "cosin"}, "did you mean 'cosine'"),
        ({"peak": 0.0}, "must be positive"),
        ({"peak": float("inf")}, "must be positive and finite"),
        ({"peak": "fast"}, "peak takes a number"),
        ({"steps": 2.5}, "steps takes a whole number"),
        ({"decay": float("nan")}, "decay takes a number"),
        ({"warm_up": 10}, "does not fit into 10"),
        ({"decay": 1.5}, "decay must be at least 0 and at most 1"),
    ],
)
def test_invalid_schedules_are_errors(change, message):
    with pytest.raises(UsageError, match=message):
        Schedule(**{"peak": 1.0, "steps": 10, **change})
