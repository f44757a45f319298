"""Prediction curves near the data, and their growth far from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.claims import interval, pick
from normplace.lab.report.specs import curves
from normplace.lab.results import Line
from normplace.lab.study import Figure
from normplace.studies.extrapolation.toy import PART, VARIANTS
from normplace.tasks.toy import EDGE, FUNCTIONS

NAMES = {"none": "no LN", "first": "LN first", "last": "LN last", "every": "LN every"}
PANELS: dict[str, Any] = {
    "series": "network",
    "order": list(NAMES.values()),
    "facet": "data",
    "panels": list(FUNCTIONS),
}


def _rows(lines: Sequence[Line], position: str, value: str, band: bool = True) -> list[dict[str, Any]]:
    """Mean and 95% interval over seeds at each position, for each data set and network."""
    rows = []
    for data in FUNCTIONS:
        for variant in VARIANTS:
            chosen = pick(lines, PART.name, data=data, norm_at=variant)
            if not chosen:
                continue
            curves = zip(*(line.series[value] for line in chosen), strict=True)
            for x, values in zip(chosen[0].series[position], curves, strict=True):
                mean, low, high = interval([v for v in values if v is not None])
                edges = {"low": low, "high": high} if band and len(values) > 1 else {}
                rows.append({"data": data, "network": NAMES[variant], position: x, value: mean, **edges})
    return rows


def _curves(lines: Sequence[Line]) -> Figure:
    return Figure(
        title="Inside the data the networks agree; outside, the one without LayerNorm leaves",
        caption=(
            "Mean prediction over seeds with its 95% interval, to ten times the range of the data (between the dashed "
            "lines). The vertical axis is cut at ±20; the network without LayerNorm goes on."
        ),
        rows=_rows(lines, "x", "prediction"),
        spec=curves(
            x={"field": "x", "title": "input"},
            y={"field": "prediction", "title": "prediction", "scale": {"domain": [-20, 20]}},
            low="low",
            high="high",
            rules=(-EDGE, EDGE),
            **PANELS,
        ),
        alt=(
            "Three panels of predictions against the input. Networks with a LayerNorm level off outside the data, "
            "the network without one goes on in a straight line."
        ),
    )


def _growth(lines: Sequence[Line]) -> Figure:
    return Figure(
        title="Growth far from the data: a slope of one without LayerNorm, none with it",
        caption=(
            "Mean over seeds of the larger of |f(x)| and |f(-x)|, on logarithmic axes, from the edge of the data to a "
            "thousand times farther."
        ),
        rows=_rows(lines, "distance", "magnitude", band=False),
        spec=curves(
            x={"field": "distance", "title": "distance from zero", "scale": {"type": "log"}},
            y={"field": "magnitude", "title": "|prediction|", "scale": {"type": "log"}},
            **PANELS,
        ),
        alt="On logarithmic axes the network without LayerNorm is a rising straight line, the three with it are flat.",
    )


def figures(lines: Sequence[Line]) -> list[Figure]:
    """Both figures, from the lines of successful trials."""
    return [_curves(lines), _growth(lines)]
