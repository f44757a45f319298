"""Accuracy of multi-query recall."""

from __future__ import annotations

from normplace.lab.studies.causalrn.figures.scores import score_figures
from normplace.lab.studies.causalrn.recall import PART
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the accuracy of every network, with and without a curriculum."""
    own = pick(records, PART.name)
    with_curriculum = [record for record in own if record.config.get("first_pairs")]
    without = [record for record in own if not record.config.get("first_pairs")]
    return [
        *_figures(
            with_curriculum,
            "Multi-query associative recall with a curriculum",
            "after training in which the number of pairs grows",
        ),
        *_figures(without, "Multi-query associative recall", "after training with all pairs from the start"),
    ]


def _figures(records: Records, title: str, training: str) -> list[Figure]:
    return score_figures(
        records,
        PART.name,
        "pairs",
        "{} pairs",
        "accuracy",
        "accuracy",
        spread=None,
        title=title,
        caption=f"Share of queries answered correctly {training}; a point for each seed, at equal parameter counts.",
    )
