"""Prediction curves near the data, and their growth far from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.claims import pick
from normplace.lab.report.specs import curves
from normplace.lab.results import Line
from normplace.lab.study import Figure
from normplace.studies.extrapolation.figures.rows import Group, mean_rows, thinned
from normplace.studies.extrapolation.network import NAMES, VARIANTS
from normplace.studies.extrapolation.toy import PART
from normplace.tasks.toy import EDGE, FUNCTIONS

PANELS: dict[str, Any] = {
    "series": "network",
    "order": list(NAMES.values()),
    "facet": "data",
    "panels": list(FUNCTIONS),
}


def _groups(lines: Sequence[Line]) -> list[Group]:
    chosen = (
        ({"data": data, "network": NAMES[variant]}, pick(lines, PART.name, data=data, norm_at=variant))
        for data in FUNCTIONS
        for variant in VARIANTS
    )
    return [group for group in chosen if group[1]]


def _curves(groups: Sequence[Group]) -> Figure:
    return Figure(
        title="Predictions inside the data and to ten times its range",
        caption=(
            "Mean prediction over seeds with its 95% interval, to ten times the range of the data (between the dashed "
            "lines). The vertical axis is cut at ±20."
        ),
        rows=thinned(mean_rows(groups, "x", "prediction"), "x", near=2 * EDGE),
        spec=curves(
            x={"field": "x", "title": "input"},
            y={"field": "prediction", "title": "prediction", "scale": {"domain": [-20, 20]}},
            low="low",
            high="high",
            rules=(-EDGE, EDGE),
            **PANELS,
        ),
        alt=(
            "Three panels, one per data set, of the prediction against the input, a line with its band for each of "
            "four networks: no LayerNorm, LayerNorm in the first, the last, or every hidden layer."
        ),
    )


def _growth(groups: Sequence[Group]) -> Figure:
    return Figure(
        title="Size of the prediction far from the data",
        caption=(
            "Mean over seeds of the larger of |f(x)| and |f(-x)|, on logarithmic axes, from the edge of the data to a "
            "thousand times farther. Linear growth is a line of slope one, a bounded prediction a level line."
        ),
        rows=mean_rows(groups, "distance", "magnitude", band=False),
        spec=curves(
            x={"field": "distance", "title": "distance from zero", "scale": {"type": "log"}},
            y={"field": "magnitude", "title": "|prediction|", "scale": {"type": "log"}},
            **PANELS,
        ),
        alt=(
            "Three panels, one per data set, of the size of the prediction against the distance from zero, both "
            "logarithmic, a line for each of four networks."
        ),
    )


def figures(lines: Sequence[Line]) -> list[Figure]:
    """Both figures, from the lines of successful trials."""
    groups = _groups(lines)
    return [_curves(groups), _growth(groups)] if groups else []
