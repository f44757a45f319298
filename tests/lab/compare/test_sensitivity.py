"""Sensitivity to the learning rate, against its definition."""

from __future__ import annotations

import pytest
from tests.lab.compare.lines import line

from normplace.lab.compare.edit_trials import by_edit
from normplace.lab.compare.sensitivity import rate_sensitivity


def searched(edit, rates, *, seed=0, rung=0, start=5.0):
    series = {} if start is None else {"held_out": [start, 1.0], "held_out_step": [0, 10]}
    return [
        line(edit, seed, score, part="search", rate=rate, rung=rung, series=series) for rate, score in rates.items()
    ]


def sensitivity(lines, better="smaller"):
    return rate_sensitivity(by_edit(lines, better=better), better=better)


def test_it_is_the_mean_loss_above_the_best_up_to_the_untrained_loss():
    lines = searched("pre", {1e-4: 3.0, 1e-3: 2.0, 1e-2: 40.0, 1e-1: None}) + searched(
        "peri", dict.fromkeys([1e-4, 1e-3, 1e-2, 1e-1], 2.0)
    )
    assert sensitivity(lines) == pytest.approx({"pre": (1 + 0 + 3 + 3) / 4, "peri": 0.0})


def test_only_learning_rates_that_all_edits_share_count():
    lines = searched("pre", {1e-4: 3.0, 1e-3: 2.0}) + searched("peri", {1e-4: 2.5, 1e-3: 2.0, 1e-2: 4.9})
    assert sensitivity(lines) == pytest.approx({"pre": 0.5, "peri": 0.25})
    assert sensitivity(searched("pre", {1e-4: 3.0}) + searched("peri", {1e-4: 2.0, 1e-3: 2.0})) == {}


def test_longer_rungs_do_not_count_and_seeds_are_averaged():
    lines = searched("pre", {1e-4: 3.0, 1e-3: 2.0}) + searched("pre", {1e-4: 4.0, 1e-3: 2.0}, seed=1)
    lines += searched("pre", {1e-4: 2.0}, rung=1)
    assert sensitivity(lines) == pytest.approx({"pre": 0.75})


def test_the_untrained_model_of_an_edit_that_explodes_is_not_the_cap():
    lines = searched("pre", {1e-3: 2.0, 1e-2: 3.0}) + searched("none", {1e-3: 1e4, 1e-2: 1e6}, start=1e9)
    assert sensitivity(lines) == pytest.approx({"pre": 0.5})


def test_without_the_untrained_loss_the_worst_trial_is_the_cap():
    lines = searched("pre", {1e-4: 3.0, 1e-3: 2.0, 1e-2: None}, start=None)
    assert sensitivity(lines) == pytest.approx({"pre": (1 + 0 + 1) / 3})


def test_a_larger_score_can_be_better():
    lines = searched("pre", {1e-4: 0.5, 1e-3: 0.9, 1e-2: 0.0}, start=0.1)
    assert sensitivity(lines, better="larger") == pytest.approx({"pre": (0.4 + 0 + 0.8) / 3})
