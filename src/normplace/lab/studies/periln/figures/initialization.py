"""Held-out loss of every initialization at every learning rate."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from normplace.lab.studies.periln.figures.rates import rate_cells
from normplace.lab.studies.periln.initialization import PART, PLACEMENTS, STARTS
from normplace.lab.studies.periln.measures import loss
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure


def initialization_rows(records: Records) -> list[dict[str, Any]]:
    """Means over seeds for each placement, initialization and learning rate, as the figure and the docs show them."""
    rows = []
    for placement in PLACEMENTS:
        for start in STARTS:
            for rate in config_values(records, PART.name, "learning_rate", placement=placement, start=start):
                selected = pick(records, PART.name, placement=placement, start=start, learning_rate=rate)
                rows.append(
                    {
                        "network": f"{placement}, {start}",
                        "rate": f"{rate:g}",
                        "bits": fmean(map(loss, selected)),
                        "seeds": len(selected),
                        "peak": fmean(record.metrics.get("peak_end") or float("inf") for record in selected),
                        "variance": fmean(record.series["variance_end"][-1] or float("inf") for record in selected),
                    }
                )
    return rows


def figures(records: Records) -> list[Figure]:
    """Draw the table."""
    rows = [{**row, "shown": f"{row['bits']:.2f}"} for row in initialization_rows(records)]
    if not rows:
        return []
    return [
        Figure(
            title="Bits per byte by placement, initial weights and learning rate, 24 layers",
            caption="Mean over seeds on the validation text after 256 steps. depth: the last matrix of each branch "
            "divided by sqrt(48); fixed: standard deviation 0.02; xavier: Xavier initialization of every matrix. Peak "
            "and variance are of the stream after the last layer of the trained network.",
            rows=rows,
            spec=rate_cells(rows, "network"),
            alt="A table of placements and initial weights by learning rates, each cell with its bits per byte.",
        )
    ]
