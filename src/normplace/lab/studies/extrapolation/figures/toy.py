"""The toy networks, by where their LayerNorm stands."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.report.rows import Group
from normplace.lab.studies.extrapolation.figures.reach import near_and_far
from normplace.lab.studies.extrapolation.network import NAMES
from normplace.lab.studies.extrapolation.toy import PART
from normplace.lab.tasks.toy import FUNCTIONS
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """Both figures, from the lines of successful trials."""
    groups: list[Group] = [
        ({"data": data, "network": name}, chosen)
        for data in FUNCTIONS
        for norm_at, name in NAMES.items()
        if (chosen := pick(lines, PART.name, data=data, norm_at=norm_at))
    ]
    return near_and_far(groups, list(NAMES.values()))
