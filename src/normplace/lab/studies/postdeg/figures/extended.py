"""Gain of a scale against the degree information that already reaches the head."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.charts import PALETTE
from normplace.lab.report.rows import mean_columns
from normplace.lab.studies.postdeg.claims.extended import degree_information, extended_gain
from normplace.lab.studies.postdeg.extended import SLOT, scaled_cells
from normplace.lab.studies.postdeg.published import GAINS
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure
from normplace.models.convolutions import CONVOLUTIONS

TICKS = [-20, -10, -5, -2, 0, 2, 5, 10, 20, 50]


def figures(records: Records) -> list[Figure]:
    """Draw one panel per task, one point per cell."""
    rows = [row for task in TASKS for cell in scaled_cells() for row in _row(records, task, cell)]
    names = [title for title in CONVOLUTIONS.values() if any(row["convolution"] == title for row in rows)]
    low, high = (100 * pick(GAINS.values()) for pick in (min, max))
    color = {"field": "convolution", "type": "nominal", "title": None, "sort": names,
             "scale": {"domain": names, "range": list(PALETTE[: len(names)])}}  # fmt: skip
    shape = {"field": "placement", "type": "nominal", "title": None, "sort": list(SLOT),
             "scale": {"domain": list(SLOT), "range": ["circle", "square", "triangle-up"]}}  # fmt: skip
    # Gains over a random order are ten times as large as those that decide; linear near zero, logarithmic beyond.
    scale = {"type": "symlog", "constant": 2}
    gain = {"field": "gain", "type": "quantitative", "title": "gain, %", "scale": scale,
            "axis": {"values": TICKS}}  # fmt: skip
    known = {"field": "known", "type": "quantitative", "title": "degree at the head without the scale, R²"}
    band = {
        "data": {"values": [{"low": low, "high": high}]},
        "mark": {"type": "rect", "opacity": 0.15, "aria": False},
        "encoding": {"y": {"field": "low", "type": "quantitative", "scale": scale}, "y2": {"field": "high"}},
    }
    zero = {
        "data": {"values": [{"zero": 0}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "aria": False},
        "encoding": {"y": {"field": "zero", "type": "quantitative", "scale": scale}},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 48, "opacity": 0.9},
        "encoding": {"x": known, "y": gain, "color": color, "shape": shape},
    }
    return [
        Figure(
            title="Gain of a scale against the degree that already reaches the head",
            caption="One point per placement, convolution, input, scalar and power; mean over paired seeds, with "
            "intervals in the table. R² is that of a probe of the network without the scale. The vertical axis is "
            "linear near zero and logarithmic beyond. The band spans the published gains.",
            rows=rows,
            spec={
                "facet": {"field": "task", "type": "nominal", "title": None, "sort": list(TASKS.values())},
                "columns": 3,
                "spec": {"width": 240, "layer": [band, zero, points]},
            },
            alt="Three panels, one per task: gain against the R² of a probe of the degree, one point per cell.",
        )
    ]


def _row(records: Records, task: str, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Gain and degree information of one cell; empty without records."""
    percent, known = (100 * extended_gain(task, cell))(records), degree_information(task, cell)(records)
    if not percent or not known:
        return []
    scale = f"{cell.get('source', 'degree')}^{cell.get('power', -1.0):g}"
    return [
        {
            "task": TASKS[task],
            "placement": cell.get("placement", "post"),
            "convolution": CONVOLUTIONS[cell.get("convolution", "softmax")],
            "input": cell.get("features", "constant"),
            "scale": scale + (", extra norm" if cell.get("extra_norm") else ""),
            "known": known.mean(),
            **mean_columns(percent.values(), "gain"),
        }
    ]
