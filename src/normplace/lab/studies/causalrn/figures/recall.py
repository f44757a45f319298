"""Accuracy of multi-query recall."""

from __future__ import annotations

from normplace.lab.studies.causalrn.figures.scores import score_figures
from normplace.lab.studies.causalrn.recall import PART
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the accuracy of every network."""
    return score_figures(
        records,
        PART.name,
        "pairs",
        "accuracy",
        "accuracy",
        title="Multi-query associative recall",
        caption="Share of queries answered correctly; mean over seeds with its 95% interval, at equal parameter "
        "counts.",
    )
