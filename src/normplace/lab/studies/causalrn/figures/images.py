"""Accuracy of image classification."""

from __future__ import annotations

from normplace.lab.report.rows import seed_range
from normplace.lab.studies.causalrn.figures.scores import score_figures
from normplace.lab.studies.causalrn.images import PART
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the test accuracy of every network."""
    return score_figures(
        records,
        PART.name,
        "data",
        "{}",
        "accuracy",
        "accuracy",
        seed_range,
        title="Image classification with pixels as a sequence",
        caption="Test accuracy; mean and range over seeds, at equal parameter counts.",
    )
