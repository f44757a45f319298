"""Error and magnitude of the Transformer's continuation of a line, by position."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.sequence import PART
from normplace.lab.tasks.sequences.straight_lines import PROMPT_LENGTH, TRAIN_LENGTH
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

NAMES = {"none": "no LN", "embedding": "LN after embedding"}


def figures(records: Records) -> list[Figure]:
    """Draw mean error and largest prediction against the position."""
    groups: list[Group] = [
        ({"network": name}, selected)
        for norm_at, name in NAMES.items()
        if (selected := pick(records, PART.name, norm_at=norm_at))
    ]
    along = {"field": "position", "title": "position", "scale": {"zero": False}}
    shape = {"series": "network", "order": list(NAMES.values()), "rules": (TRAIN_LENGTH,)}
    caption = (
        f"A two-layer Transformer reads the first {PROMPT_LENGTH} values of a line and continues it; it was trained on "
        f"positions up to {TRAIN_LENGTH}, the dashed line. In standard deviations of the training values, logarithmic "
        "axis; "
    )
    return [
        Figure(
            title="Transformer continuing straight lines: error by position",
            caption=caption + "the mean over seeds of the mean absolute error over lines.",
            rows=mean_rows(groups, "position", "error", band=False),
            spec=curves(x=along, y={"field": "error", "title": "error", "scale": {"type": "log"}}, **shape),
            alt="Mean error against the position, one line with and one without a LayerNorm.",
        ),
        Figure(
            title="Transformer continuing straight lines: largest prediction by position",
            caption=caption + "the mean over seeds of the largest absolute prediction over lines.",
            rows=mean_rows(groups, "position", "largest", band=False),
            spec=curves(
                x=along, y={"field": "largest", "title": "largest |prediction|", "scale": {"type": "log"}}, **shape
            ),
            alt="Largest prediction against the position, a line for each of the two networks.",
        ),
    ]
