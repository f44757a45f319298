"""Gradients of deep stacks before training."""

from __future__ import annotations

import math
from typing import Any

from normplace.lab.report.specs import curves
from normplace.lab.studies.deepergcn.depth import ORDERS
from normplace.lab.studies.deepergcn.initial_gradients import NORMS, PART
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the gradients on Minesweeper, or on the generated grid if they were not measured there."""
    data = next((name for name in ("minesweeper", "grid-mines") if pick(records, PART.name, data=name)), None)
    if data is None:
        return []
    rows: list[dict[str, Any]] = []
    for norm, title in NORMS.items():
        for order in ORDERS:
            selected = pick(records, PART.name, data=data, norm=norm, order=order)
            for layer, values in enumerate(zip(*(record.series["gradient"] for record in selected), strict=True), 1):
                if logs := [math.log10(value) for value in values if value]:
                    gradient = 10 ** (sum(logs) / len(logs))
                    rows.append({"norm": title, "order": order, "layer": layer, "gradient": gradient})
    return [
        Figure(
            title="Gradient of every convolution before training, by norm",
            caption=f"Norm of the gradient of the weights in untrained stacks on {data}, geometric mean over seeds, "
            "logarithmic. Gradients vanish if the curve falls towards the first layers, and explode if it rises.",
            rows=rows,
            spec=curves(
                x={"field": "layer", "title": "layer"},
                y={"field": "gradient", "title": "gradient norm", "scale": {"type": "log"}},
                series="order",
                order=ORDERS,
                facet="norm",
                panels=list(NORMS.values()),
            ),
            alt="A panel for each norm with the gradient norm against the layer for each block order.",
        )
    ]
