"""Predictions of toy networks near the data, and their magnitude far from it."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.report.rows import Group, mean_rows, thinned
from normplace.lab.report.specs import curves
from normplace.lab.tasks.regression.toy import EDGE, FUNCTIONS
from normplace.lab.trials.study import Figure


def near_and_far(groups: Sequence[Group], networks: Sequence[str], *, prefix: str = "", note: str = "") -> list[Figure]:
    """Draw predictions near the data and magnitudes far from it, one panel per data set."""
    panels = {"series": "network", "order": list(networks), "facet": "data", "panels": list(FUNCTIONS)}
    drawn = f"Three panels, one per data set, a line for each network: {'; '.join(networks)}."
    near = Figure(
        title=f"{prefix}Predictions within ten times the range of the data",
        caption=(
            "Mean prediction over seeds with its 95% interval, to ten times the range of the data (between the dashed "
            f"lines). The vertical axis is cut at ±20.{note}"
        ),
        rows=thinned(mean_rows(groups, "x", "prediction"), "x", near=2 * EDGE),
        spec=curves(
            x={"field": "x", "title": "input"},
            y={"field": "prediction", "title": "prediction", "scale": {"domain": [-20, 20]}},
            band=True,
            rules=(-EDGE, EDGE),
            **panels,
        ),
        alt=f"Predictions against the input. {drawn}",
    )
    far = Figure(
        title=f"{prefix}Magnitude of the prediction far from the data",
        caption=(
            "Mean over seeds of the larger of |f(x)| and |f(-x)|, on logarithmic axes, from the edge of the data to a "
            "thousand times farther. Linear growth is a line of slope one, a bounded prediction a horizontal line."
        ),
        rows=mean_rows(groups, "distance", "magnitude", band=False),
        spec=curves(
            x={"field": "distance", "title": "distance from zero", "scale": {"type": "log"}},
            y={"field": "magnitude", "title": "|prediction|", "scale": {"type": "log"}},
            **panels,
        ),
        alt=f"Magnitude of the prediction against the distance from zero, both axes logarithmic. {drawn}",
    )
    return [near, far]
