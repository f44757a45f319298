"""The log of finished trials."""

from __future__ import annotations

import pytest
from tests.lab.compare.lines import line

from normplace.errors import UsageError
from normplace.lab.compare.trial_log import TrialLog
from normplace.lab.train.log import TRACKERS


def test_every_trial_is_logged_under_its_edit(tmp_path, monkeypatch):
    got = []

    class Tracker:
        def __init__(self, out, config):
            got.append((out, config))

        def write(self, step, values):
            got.append((step, values))

        def close(self):
            got.append("closed")

    monkeypatch.setitem(TRACKERS, "tensorboard", Tracker)
    with TrialLog("tensorboard", tmp_path, {"task": "notes"}) as log:
        log(line("peri", 0, 1.5, part="search", rate=1e-3))
        log(line("post", 0, None, rate=3e-3, metrics={"step_ms": 2.0}))
    search = {"learning_rate": 1e-3, "choose": 1.5, "report": 1.5, "diverged": 0.0}
    final = {"learning_rate": 3e-3, "diverged": 1.0, "step_ms": 2.0}
    assert got == [
        (tmp_path, {"task": "notes"}),
        (1, {f"search/peri/{key}": value for key, value in search.items()}),
        (2, {f"final/post/{key}": value for key, value in final.items()}),
        "closed",
    ]


def test_an_unknown_tracker_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="unknown log 'tensorbord': did you mean 'tensorboard'"):
        TrialLog("tensorbord", tmp_path)
