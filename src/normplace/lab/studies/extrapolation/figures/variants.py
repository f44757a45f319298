"""Predictions of the toy networks with other activations and with BatchNorm."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.studies.extrapolation.figures.predictions import near_and_far
from normplace.lab.studies.extrapolation.variants import ONE_NORM, PART
from normplace.lab.tasks.regression.toy import FUNCTIONS
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

NETWORKS = {
    "GELU, no LN": {"activation": "gelu", "norm": "layer", "norm_at": "none"},
    f"GELU, LN {ONE_NORM}": {"activation": "gelu", "norm": "layer", "norm_at": ONE_NORM},
    "SiLU, no LN": {"activation": "silu", "norm": "layer", "norm_at": "none"},
    f"SiLU, LN {ONE_NORM}": {"activation": "silu", "norm": "layer", "norm_at": ONE_NORM},
    "ReLU, BatchNorm every": {"activation": "relu", "norm": "batch", "norm_at": "every"},
}


def figures(records: Records) -> list[Figure]:
    """Draw predictions near the data and their magnitude far from it."""
    groups: list[Group] = [
        ({"data": data, "network": name}, selected)
        for data in FUNCTIONS
        for name, fields in NETWORKS.items()
        if (selected := pick(records, PART.name, data=data, **fields))
    ]
    return near_and_far(
        groups,
        list(NETWORKS),
        prefix="Other activations and BatchNorm: ",
        note=" BatchNorm predicts with its running statistics.",
    )
