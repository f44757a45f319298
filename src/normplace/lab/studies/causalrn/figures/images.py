"""Accuracy of image classification."""

from __future__ import annotations

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
        "accuracy",
        "accuracy",
        title="Image classification with pixels as a sequence",
        caption="Test accuracy; mean over seeds with its 95% interval, at equal parameter counts.",
    )
