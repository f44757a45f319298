from __future__ import annotations

import json
import math

import pytest

from normplace.lab.train.divergence import DivergenceDetector


@pytest.mark.parametrize(
    ("loss", "gradient", "reason"),
    [
        (math.nan, 1.0, "the loss is nan"),
        (math.inf, 1.0, "the loss is inf"),
        (2.0, math.inf, "the gradient overflowed: its norm is inf"),
        (2.0, math.nan, "the gradient overflowed: its norm is nan"),
    ],
)
def test_values_that_are_not_finite_are_divergence(loss, gradient, reason):
    detector = DivergenceDetector(2.0, 8)
    assert detector.update(2.0, 1.0) is None
    assert detector.update(loss, gradient) == reason


def test_single_spikes_are_counted_but_not_divergence():
    detector = DivergenceDetector(1.0, 3)
    losses = [3.0] * 10 + [4.5, 4.5, 3.0, 4.5, 4.5, 2.9]
    assert [detector.update(loss, 1.0) for loss in losses] == [None] * len(losses)
    assert detector.spikes == 4


def test_a_loss_that_stays_high_is_divergence_and_does_not_move_the_median():
    detector = DivergenceDetector(1.0, 100)
    detector.update(3.0, 1.0)
    reasons = [detector.update(4.1, 1.0) for _ in range(100)]
    assert reasons[:99] == [None] * 99
    assert reasons[99] == "the loss stayed more than 1 nats above its median of 3 for 100 steps"


def test_falling_losses_are_never_spikes():
    detector = DivergenceDetector(0.5, 1)
    assert all(detector.update(10.0 / (1 + step), 1.0) is None for step in range(300))


def test_the_state_is_restored():
    losses = [3.0, 2.9, 5.0, 2.8, 5.0, 5.1, 5.2]
    whole, parts = DivergenceDetector(1.0, 3), DivergenceDetector(1.0, 3)
    expected = [whole.update(loss, 1.0) for loss in losses]
    first = [parts.update(loss, 1.0) for loss in losses[:5]]
    again = DivergenceDetector(1.0, 3)
    again.load_state_dict(json.loads(json.dumps(parts.state_dict())))
    assert first + [again.update(loss, 1.0) for loss in losses[5:]] == expected
    assert expected[-1] is not None
