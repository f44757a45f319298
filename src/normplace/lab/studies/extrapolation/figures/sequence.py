"""How far the Transformer's continuation of a line is off, position by position."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.sequence import PART
from normplace.lab.tasks.lines import GIVEN, TRAINED
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

NAMES = {"none": "no LN", "embedding": "LN after embedding"}


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """Mean error and largest prediction against the position, from the lines of successful trials."""
    groups: list[Group] = [
        ({"network": name}, chosen)
        for norm_at, name in NAMES.items()
        if (chosen := pick(lines, PART.name, norm_at=norm_at))
    ]
    if not groups:
        return []
    along = {"field": "position", "title": "position", "scale": {"zero": False}}
    shape = {"series": "network", "order": list(NAMES.values()), "rules": (TRAINED,)}
    caption = (
        f"A Transformer of two layers is given the first {GIVEN} values of a line and continues it; it was trained on "
        f"positions up to {TRAINED}, the dashed line. In units of the training values' deviation, the vertical axis "
        "logarithmic; "
    )
    return [
        Figure(
            title="A Transformer continuing straight lines: error by position",
            caption=caption + "the mean over seeds of the mean absolute error over lines.",
            rows=mean_rows(groups, "position", "error", band=False),
            spec=curves(x=along, y={"field": "error", "title": "error", "scale": {"type": "log"}}, **shape),
            alt="Mean error against the position, a line for the network with a LayerNorm and one for that without.",
        ),
        Figure(
            title="A Transformer continuing straight lines: largest prediction by position",
            caption=caption + "the mean over seeds of the largest absolute prediction over lines.",
            rows=mean_rows(groups, "position", "largest", band=False),
            spec=curves(
                x=along, y={"field": "largest", "title": "largest |prediction|", "scale": {"type": "log"}}, **shape
            ),
            alt="Largest prediction against the position, a line for each of the two networks.",
        ),
    ]
