"""Prediction curves near the data, and their growth far from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.claims import interval, pick
from normplace.lab.results import Line
from normplace.lab.study import Figure
from normplace.studies.extrapolation.trials import VARIANTS
from normplace.tasks.toy import EDGE, FUNCTIONS

NAMES = {"none": "no LN", "first": "LN first", "last": "LN last", "every": "LN every"}
COLOUR = {"field": "network", "type": "nominal", "sort": list(NAMES.values()), "title": None}


def _rows(lines: Sequence[Line], position: str, value: str) -> list[dict[str, Any]]:
    """Mean and 95% interval over seeds at each position, for each data set and network."""
    rows = []
    for data in FUNCTIONS:
        for variant in VARIANTS:
            chosen = pick(lines, data=data, norm_at=variant)
            if not chosen:
                continue
            curves = zip(*(line.series[value] for line in chosen), strict=True)
            for x, values in zip(chosen[0].series[position], curves, strict=True):
                mean, low, high = interval([v for v in values if v is not None])
                band = {} if len(values) < 2 else {"low": low, "high": high}
                rows.append({"data": data, "network": NAMES[variant], position: x, value: mean, **band})
    return rows


def _curves(lines: Sequence[Line]) -> Figure:
    rows = _rows(lines, "x", "prediction")
    axis_x = {"field": "x", "type": "quantitative", "title": "input"}
    panel = {
        "width": 250,
        "height": 220,
        "layer": [
            {
                "transform": [{"filter": "datum.x == 0 && datum.network == 'no LN'"}],
                "mark": {"type": "rect", "opacity": 0.12, "color": "#888888"},
                "encoding": {"x": {"datum": -EDGE}, "x2": {"datum": EDGE}},
            },
            {
                "mark": {"type": "area", "opacity": 0.25, "clip": True},
                "encoding": {
                    "x": axis_x,
                    "y": {"field": "low", "type": "quantitative"},
                    "y2": {"field": "high"},
                    "color": COLOUR,
                },
            },
            {
                "mark": {"type": "line", "clip": True, "strokeWidth": 2},
                "encoding": {
                    "x": axis_x,
                    "y": {
                        "field": "prediction",
                        "type": "quantitative",
                        "scale": {"domain": [-15, 15]},
                        "title": "prediction",
                    },
                    "color": COLOUR,
                    "strokeDash": COLOUR,
                },
            },
        ],
    }
    return Figure(
        title="Inside the data the networks agree; outside, the one without LayerNorm leaves",
        caption=(
            "Mean prediction over seeds with its 95% interval, to ten times the range of the data (shaded). "
            "The vertical axis is cut at ±15; the network without LayerNorm goes on."
        ),
        rows=rows,
        spec={
            "facet": {"column": {"field": "data", "type": "nominal", "title": None, "sort": list(FUNCTIONS)}},
            "spec": panel,
        },
        alt=(
            "Three panels of predictions against the input. Networks with a LayerNorm level off outside the data, "
            "the network without one goes on in a straight line."
        ),
    )


def _growth(lines: Sequence[Line]) -> Figure:
    rows = [
        {key: value for key, value in row.items() if key not in ("low", "high")}
        for row in _rows(lines, "distance", "magnitude")
    ]
    log = {"type": "log"}
    return Figure(
        title="Growth far from the data: a slope of one without LayerNorm, none with it",
        caption=(
            "Mean over seeds of the larger of |f(x)| and |f(-x)|, on logarithmic axes, from the edge of the data to a "
            "thousand times farther."
        ),
        rows=rows,
        spec={
            "facet": {"column": {"field": "data", "type": "nominal", "title": None, "sort": list(FUNCTIONS)}},
            "spec": {
                "width": 250,
                "height": 220,
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {
                    "x": {"field": "distance", "type": "quantitative", "scale": log, "title": "distance from zero"},
                    "y": {"field": "magnitude", "type": "quantitative", "scale": log, "title": "|prediction|"},
                    "color": COLOUR,
                    "strokeDash": COLOUR,
                },
            },
        },
        alt="On logarithmic axes the network without LayerNorm is a rising straight line, the three with it are flat.",
    )


def figures(lines: Sequence[Line]) -> list[Figure]:
    """Both figures, from the lines of successful trials."""
    return [_curves(lines), _growth(lines)]
