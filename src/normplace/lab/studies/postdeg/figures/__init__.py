"""The study's figures, part by part."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.studies.postdeg.figures import recommend, selection, social, topologies
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

PARTS = (selection, topologies, recommend, social)


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """The figures of every part that has lines of successful trials."""
    return [figure for part in PARTS for figure in part.figures(lines)]
