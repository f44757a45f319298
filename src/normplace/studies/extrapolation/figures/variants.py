"""Growth far from the toy data with other activations and with BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.claims import pick
from normplace.lab.report.specs import curves
from normplace.lab.results import Line
from normplace.lab.study import Figure
from normplace.studies.extrapolation.figures.rows import Group, mean_rows, thinned
from normplace.studies.extrapolation.variants import ONE_NORM, PART
from normplace.tasks.toy import EDGE, FUNCTIONS

NETWORKS = {
    "GELU, no LN": {"activation": "gelu", "norm": "layer", "norm_at": "none"},
    f"GELU, LN {ONE_NORM}": {"activation": "gelu", "norm": "layer", "norm_at": ONE_NORM},
    "SiLU, no LN": {"activation": "silu", "norm": "layer", "norm_at": "none"},
    f"SiLU, LN {ONE_NORM}": {"activation": "silu", "norm": "layer", "norm_at": ONE_NORM},
    "ReLU, BatchNorm every": {"activation": "relu", "norm": "batch", "norm_at": "every"},
}


def figures(lines: Sequence[Line]) -> list[Figure]:
    """Predictions near the data and their size far from it, from the lines of successful trials."""
    groups: list[Group] = [
        ({"data": data, "network": name}, chosen)
        for data in FUNCTIONS
        for name, fields in NETWORKS.items()
        if (chosen := pick(lines, PART.name, data=data, **fields))
    ]
    if not groups:
        return []
    shape = {"series": "network", "order": list(NETWORKS), "facet": "data", "panels": list(FUNCTIONS)}
    near = Figure(
        title="Other activations and BatchNorm: predictions to ten times the range of the data",
        caption=(
            "Mean prediction over seeds with its 95% interval; the data lie between the dashed lines. The vertical "
            "axis is cut at ±20. BatchNorm predicts with the statistics it gathered in training."
        ),
        rows=thinned(mean_rows(groups, "x", "prediction"), "x", near=2 * EDGE),
        spec=curves(
            x={"field": "x", "title": "input"},
            y={"field": "prediction", "title": "prediction", "scale": {"domain": [-20, 20]}},
            low="low",
            high="high",
            rules=(-EDGE, EDGE),
            **shape,
        ),
        alt=(
            "Three panels, one per data set, of the prediction against the input, a line with its band for each of "
            "five networks: GELU and SiLU with and without LayerNorm, and ReLU with BatchNorm."
        ),
    )
    far = Figure(
        title="Other activations and BatchNorm: size of the prediction far from the data",
        caption="Mean over seeds of the larger of |f(x)| and |f(-x)|, on logarithmic axes.",
        rows=mean_rows(groups, "distance", "magnitude", band=False),
        spec=curves(
            x={"field": "distance", "title": "distance from zero", "scale": {"type": "log"}},
            y={"field": "magnitude", "title": "|prediction|", "scale": {"type": "log"}},
            **shape,
        ),
        alt=(
            "Three panels, one per data set, of the size of the prediction against the distance from zero, both "
            "logarithmic, a line for each of the five networks."
        ),
    )
    return [near, far]
