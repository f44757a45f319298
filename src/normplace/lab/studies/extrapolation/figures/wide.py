"""Distance between trained networks and the kernel's prediction."""

from __future__ import annotations

from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.wide import COMPARED, PART
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the distance against the width."""
    rows = [
        {
            "network": NAMES[record.config["norm_at"]],
            "seed": record.seed,
            "width": record.config["width"],
            "distance": record.metrics["distance"],
        }
        for record in pick(records, PART.name)
    ]
    spec = curves(
        x={"field": "width", "title": "width", "scale": {"type": "log", "base": 2}},
        y={"field": "distance", "title": "relative distance", "scale": {"type": "log"}, "aggregate": "mean"},
        series="network",
        order=[NAMES[norm_at] for norm_at in COMPARED],
    )
    return [
        Figure(
            title="Distance between trained networks and the kernel's prediction, by width",
            caption=(
                "RMS distance on three times the range of the data over the RMS of the targets, mean over seeds, after "
                "training on 20 points of the sinusoid; both axes logarithmic."
            ),
            rows=rows,
            spec=spec,
            alt="Relative distance between networks and prediction against the width.",
        )
    ]
