"""How near trained networks come to the kernel's prediction."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.network import NAMES
from normplace.lab.studies.extrapolation.wide import COMPARED, PART
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """The distance to the prediction against the width, every seed a point of a line."""
    chosen = pick(lines, PART.name)
    if not chosen:
        return []
    rows = [
        {
            "network": NAMES[line.config["norm_at"]],
            "seed": line.seed,
            "width": line.config["width"],
            "distance": line.metrics["distance"],
        }
        for line in chosen
    ]
    spec = curves(
        x={"field": "width", "title": "width", "scale": {"type": "log", "base": 2}},
        y={"field": "distance", "title": "relative distance", "scale": {"type": "log"}, "aggregate": "mean"},
        series="network",
        order=[NAMES[norm_at] for norm_at in COMPARED],
    )
    return [
        Figure(
            title="Distance between trained networks and the kernel's prediction, against the width",
            caption=(
                "Mean over seeds of the root mean square distance on three times the range of the data, over that of "
                "the targets, after training on 20 points of the sinusoid; both axes logarithmic."
            ),
            rows=rows,
            spec=spec,
            alt="The relative distance between networks and prediction as a function of their width.",
        )
    ]
