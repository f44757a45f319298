"""Committed results, each file read once in a process: to check and hash the lines of all takes two seconds."""

from __future__ import annotations

import functools
from pathlib import Path

from normplace.lab.studies import STUDIES
from normplace.lab.trials.runner import RecordedRun, read_run


@functools.cache
def committed_run(path: Path) -> RecordedRun:
    return read_run(path, STUDIES)
