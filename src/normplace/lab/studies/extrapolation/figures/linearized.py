"""Trained networks and their own tangent kernel, by width."""

from __future__ import annotations

from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.linearized import PART
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.wide import COMPARED
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

PANELS = {
    "own_distance": "distance to the prediction of the own kernel",
    "reach": "largest |prediction| over largest |target|",
}


def figures(records: Records) -> list[Figure]:
    """Draw the distance to the kernel's prediction and the largest prediction against the width."""
    rows = [
        {
            "measure": title,
            "network": NAMES[record.config["norm_at"]],
            "seed": record.seed,
            "width": record.config["width"],
            "value": record.metrics[name],
        }
        for name, title in PANELS.items()
        for record in pick(records, PART.name)
    ]
    spec = curves(
        x={"field": "width", "title": "width", "scale": {"type": "log", "base": 2}},
        y={"field": "value", "title": None, "scale": {"type": "log"}, "aggregate": "mean"},
        series="network",
        order=[NAMES[norm_at] for norm_at in COMPARED],
        facet="measure",
        panels=list(PANELS.values()),
        columns=2,
    )
    return [
        Figure(
            title="Trained networks compared with their own kernel at initialization, by width",
            caption="Left: RMS distance on three times the range of the data over the RMS of the targets. Right: "
            "largest prediction up to a thousand times the range of the data. Means over seeds, logarithmic axes.",
            rows=rows,
            spec=spec | {"resolve": {"scale": {"y": "independent"}}},
            alt="Two panels against the width: distance to the prediction of the own kernel, and largest prediction.",
        )
    ]
