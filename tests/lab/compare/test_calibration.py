"""The committed figures on calibration and on the Peri-LN study, and their tables in the documentation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import calibrate_compare  # noqa: E402
import numpy as np  # noqa: E402
import replay_periln  # noqa: E402
from calibration.methods import METHODS  # noqa: E402
from papers.blocks import fill  # noqa: E402


def test_the_page_shows_the_committed_figures():
    calibration, replay = (json.loads(script.FIGURES.read_text()) for script in (calibrate_compare, replay_periln))
    page = calibrate_compare.PAGE.read_text()
    blocks = {**calibrate_compare.tables(calibration), "replay": replay_periln.text(replay)}
    assert fill(page, blocks) == page, "run scripts/calibrate_compare.py --tables and scripts/replay_periln.py"


def test_every_promise_holds_and_a_broken_one_is_named():
    figures = json.loads(calibrate_compare.FIGURES.read_text())
    assert calibrate_compare.broken_promises(figures) == []
    figures["equal edits"][0]["best against each"] = 0.9
    figures["planted effects"][0]["found"] = 0.7
    figures["seeds needed"][0]["quartiles of the ratio"][1] = 1.6
    figures["seeds needed"][1]["range covers"] = 0.7
    figures["same edit"][0]["tied"] = 0
    figures["coarse accuracy"][0]["against the baseline"] = 0.9
    assert len(calibrate_compare.broken_promises(figures)) == 6


def test_no_verdict_on_the_study_is_reversed_and_all_lines_agree():
    figures = json.loads(replay_periln.FIGURES.read_text())
    assert not any(row["opposite"] for row in figures)
    assert [row["check"] for row in figures if row["all lines"]["verdict"] != row["expected"]] == []
    assert all(row["quarter"]["cost"] <= 0.25 for row in figures)


def test_every_method_separates_a_large_effect():
    scores = np.random.default_rng(0).normal(size=(3, 10))
    scores[1] += 20
    assert {name for name, method in METHODS.items() if not method(scores)[0]} == set()
