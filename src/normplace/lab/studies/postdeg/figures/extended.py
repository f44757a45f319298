"""Gain of a scale against the degree information that already reaches the head."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.charts import PALETTE
from normplace.lab.report.rows import mean_columns
from normplace.lab.studies.postdeg.claims.extended import degree_information, extended_gain
from normplace.lab.studies.postdeg.extended import scaled_cells
from normplace.lab.studies.postdeg.published import GAINS
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure
from normplace.models.convolutions import CONVOLUTIONS


def figures(records: Records) -> list[Figure]:
    """Draw one panel per task, one point per cell."""
    rows = [row for task in TASKS for cell in scaled_cells() for row in _row(records, task, cell)]
    if not rows:
        return []
    names = [title for title in CONVOLUTIONS.values() if any(row["convolution"] == title for row in rows)]
    low, high = (100 * pick(GAINS.values()) for pick in (min, max))
    color = {"field": "convolution", "type": "nominal", "title": None, "sort": names,
             "scale": {"domain": names, "range": list(PALETTE[: len(names)])}}  # fmt: skip
    gain = {"field": "gain", "type": "quantitative", "title": "gain, %"}
    known = {"field": "known", "type": "quantitative", "title": "degree at the head without the scale, R²"}
    band = {
        "data": {"values": [{"low": low, "high": high}]},
        "mark": {"type": "rect", "opacity": 0.15, "aria": False},
        "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 48, "opacity": 0.9},
        "encoding": {"x": known, "y": gain, "color": color},
    }
    return [
        Figure(
            title="Gain of a scale against the degree that already reaches the head",
            caption="One point per placement, convolution, input, scalar and power; mean over paired seeds, with "
            "intervals in the table. The band spans the published gains.",
            rows=rows,
            spec={
                "facet": {"field": "task", "type": "nominal", "title": None, "sort": list(TASKS.values())},
                "columns": 3,
                "spec": {"width": 240, "layer": [band, points]},
            },
            alt="Three panels, one per task: gain against the R² of a probe of the degree, one point per cell.",
        )
    ]


def _row(records: Records, task: str, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Gain and degree information of one cell; empty without records."""
    percent, known = (100 * extended_gain(task, cell))(records), degree_information(task, cell)(records)
    if not percent or not known:
        return []
    numbers = mean_columns(percent.values())
    scale = f"{cell.get('source', 'degree')}^{cell.get('power', -1.0):g}"
    return [
        {
            "task": TASKS[task],
            "placement": cell.get("placement", "post"),
            "convolution": CONVOLUTIONS[cell.get("convolution", "softmax")],
            "input": cell.get("features", "constant"),
            "scale": scale + (", extra norm" if cell.get("extra_norm") else ""),
            "known": known.mean(),
            "gain": numbers.pop("value"),
            **numbers,
        }
    ]
