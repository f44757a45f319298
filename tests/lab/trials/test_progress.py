"""Progress in a log that is not a terminal."""

from __future__ import annotations

import io

from normplace.lab.trials import progress
from normplace.lab.trials.progress import Progress


def test_a_log_has_a_line_now_and_then(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    view = Progress(stream)
    with view.watch("sample", [f"trial {index}" for index in range(10)], skipped=2):
        for index in range(5):
            view.started(index)
            now[0] += 10
            view.finished(index, ok=index != 1)
    assert stream.getvalue() == "sample  5 of 12 trials  1 failed  0:30 so far, about 1:10 left\n"
