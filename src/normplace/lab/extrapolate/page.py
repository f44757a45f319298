"""The page: two sentences, a picture of the predictions outside the data, and a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normplace.lab.extrapolate.result import Extrapolation, ModelReport
from normplace.lab.extrapolate.search import DISTANCES
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.figure import ChartView, FigureView
from normplace.lab.report.page import render_page
from normplace.lab.report.specs import curves
from normplace.lab.trials.study import Figure

TICKS = 3
"""The largest number of powers of ten on each side of zero."""
MOST_LINEAR = 10
"""Ranges of the targets from which on powers of ten are better ticks than evenly spaced numbers."""


def render(result: Extrapolation) -> str:
    """Render the page; without vl-convert its figure is a table."""
    with ChartRenderer() as renderer:
        views = [
            FigureView(f"figure-{number}", [ChartView(one, f"figure-{number}", renderer)])
            for number, one in enumerate(figures(result), start=1)
        ]
        headings, *rows = result.departure_table()
        return render_page(
            "extrapolate.html",
            command="normplace extrapolate",
            title="Predictions outside the data",
            result=result,
            models=[model for model in (result.model, result.normed) if model is not None],
            headings=headings,
            rows=rows,
            figures=views,
            charts_installed=renderer.installed,
        )


def figures(result: Extrapolation) -> list[Figure]:
    """One figure per target."""
    return [figure(result, target) for target in range(len(result.table.targets))]


def figure(result: Extrapolation, target: int) -> Figure:
    """The smallest and largest prediction of one target over the distance from the data."""
    name = result.table.targets[target]
    column = result.table.y[:, target]
    models = [model for model in (result.model, result.normed) if model is not None]
    rows = [row for model in models for row in _rows(model, target)]
    low, high = float(column.min()), float(column.max())
    scale = {"type": "symlog", "constant": high - low, "zero": False}
    spec = curves(
        x={"field": "distance", "title": "ranges beyond the data", "scale": {"type": "log"}},
        y={"field": "middle", "title": f"predictions of {name}", "scale": scale, **_ticks(rows, high - low)},
        series="model",
        order=[model.name for model in models],
        band=True,
        width=640,
        height=320,
        under=[_target_band(low, high, scale)],
    )
    spec["layer"][-2]["mark"]["opacity"] = 0.35
    return Figure(
        title=f"Predictions of {name} outside the data",
        caption="Bands: from the smallest to the largest prediction over all lines that leave the data, against the "
        "distance from its edge in ranges of the data; lines: the middle between the two. Dashed: the range of the "
        "target in the data. The vertical axis is logarithmic beyond one range.",
        rows=rows,
        spec=spec,
        alt=f"Range of the predictions of {name} at growing distance from the data.",
    )


def _ticks(rows: list[dict[str, Any]], span: float) -> dict[str, Any]:
    """An axis with zero and powers of ten on both sides; the renderer's own if predictions stay near the targets."""
    lowest = min((row["low"] for row in rows), default=0.0)
    highest = max((row["high"] for row in rows), default=0.0)
    farthest = max(-lowest, highest)
    if not 0 < MOST_LINEAR * span < farthest:
        return {}
    first, last = math.ceil(math.log10(span)), math.floor(math.log10(farthest))
    powers = [10.0**exponent for exponent in range(last, first - 1, -max(1, math.ceil((last - first + 1) / TICKS)))]
    return {"axis": {"values": sorted(v for v in (0.0, *powers, *(-p for p in powers)) if lowest <= v <= highest)}}


def _rows(model: ModelReport, target: int) -> list[dict[str, Any]]:
    low, high = model.search.low[:, target], model.search.high[:, target]
    return [
        {"model": model.name, "distance": float(t), "low": float(a), "high": float(b), "middle": float(a + b) / 2}
        for t, a, b in zip(DISTANCES, low, high, strict=True)
        if t > 0 and np.isfinite(a) and np.isfinite(b)
    ]


def _target_band(low: float, high: float, scale: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": {"values": [{"edge": low}, {"edge": high}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "aria": False},
        "encoding": {"y": {"field": "edge", "type": "quantitative", "scale": scale}},
    }
