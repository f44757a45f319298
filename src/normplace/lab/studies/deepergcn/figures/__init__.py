"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.deepergcn.figures import (
    aggregation,
    depth,
    dropout,
    initial_gradients,
    memory,
    orders,
    recipes,
    scores,
)
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure

PARTS = (depth, dropout, aggregation, memory, scores, orders, recipes, initial_gradients)


def figures(records: Records) -> list[Figure]:
    """Draw the figures of every part that has successful trials."""
    return [figure for part in PARTS for figure in part.figures(records)]
