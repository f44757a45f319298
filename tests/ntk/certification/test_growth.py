"""The classification of sequences that grow, settle, swing or are unclear."""

from __future__ import annotations

import pytest
import torch

from normplace.ntk.certification.growth import classify


@pytest.mark.parametrize(
    ("function", "status"),
    [
        (lambda t: 3 + 1 / t, "settles"),
        (lambda t: 0 * t, "settles"),
        (lambda t: torch.exp(-t), "settles"),
        (lambda t: 5 + t**-0.5, "settles"),
        (lambda t: t**0.5, "grows"),
        (lambda t: 1e6 + t, "grows"),
        (lambda t: t**0.3, "grows"),
        (lambda t: t.log(), "unclear"),
        (lambda t: t.log() ** 3, "unclear"),
        (lambda t: t.log1p().log1p(), "unclear"),
        (lambda t: (3.7 * t.log()).sin(), "swings"),
    ],
)
def test_growth_of_known_functions(function, status):
    t = 2.0 * 10 ** (torch.arange(21, dtype=torch.float64) / 2)
    assert classify(t, function(t)[:, None], 21).status == status


def test_a_swing_that_happens_to_rise_is_not_growth():
    t = 10 ** (torch.arange(21, dtype=torch.float64) / 2)
    values = torch.where(t < 1e6, 1.0, 0.05 * (t / 1e6) ** 0.3)
    assert classify(t, values[:, None], 21).status == "unclear"


def test_growth_of_short_and_empty_samples():
    t = 10 ** (torch.arange(21, dtype=torch.float64) / 2)
    assert classify(t, t[:, None], 0).status == "unclear"
    assert classify(t, t[:, None], 1).status == "unclear"
    assert classify(t, torch.ones(21, 1, dtype=torch.float64), 5).status == "unclear"
    assert classify(t, t.square()[:, None], 5).status == "grows"
