"""The toy networks with other activations, and with BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.report.rows import Group
from normplace.lab.studies.extrapolation.figures.reach import near_and_far
from normplace.lab.studies.extrapolation.variants import ONE_NORM, PART
from normplace.lab.tasks.toy import FUNCTIONS
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

NETWORKS = {
    "GELU, no LN": {"activation": "gelu", "norm": "layer", "norm_at": "none"},
    f"GELU, LN {ONE_NORM}": {"activation": "gelu", "norm": "layer", "norm_at": ONE_NORM},
    "SiLU, no LN": {"activation": "silu", "norm": "layer", "norm_at": "none"},
    f"SiLU, LN {ONE_NORM}": {"activation": "silu", "norm": "layer", "norm_at": ONE_NORM},
    "ReLU, BatchNorm every": {"activation": "relu", "norm": "batch", "norm_at": "every"},
}


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """Predictions near the data and their size far from it, from the lines of successful trials."""
    groups: list[Group] = [
        ({"data": data, "network": name}, chosen)
        for data in FUNCTIONS
        for name, fields in NETWORKS.items()
        if (chosen := pick(lines, PART.name, data=data, **fields))
    ]
    return near_and_far(
        groups,
        list(NETWORKS),
        prefix="Other activations and BatchNorm: ",
        note=" BatchNorm predicts with the statistics it gathered in training.",
    )
