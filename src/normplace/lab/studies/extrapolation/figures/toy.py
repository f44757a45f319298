"""Predictions of the toy networks, by position of the LayerNorm."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.studies.extrapolation.figures.predictions import near_and_far
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.toy import PART
from normplace.lab.tasks.regression.toy import FUNCTIONS
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw predictions near the data and their magnitude far from it."""
    groups: list[Group] = [
        ({"data": data, "network": name}, selected)
        for data in FUNCTIONS
        for norm_at, name in NAMES.items()
        if (selected := pick(records, PART.name, data=data, norm_at=norm_at))
    ]
    return near_and_far(groups, list(NAMES.values()))
