"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.postdeg.figures import (
    budgets,
    extended,
    mis,
    recommend,
    selection,
    social,
    topologies,
    transfer,
)
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure

PARTS = (selection, topologies, transfer, mis, budgets, extended, recommend, social)


def figures(records: Records) -> list[Figure]:
    """Draw the figures of every part that has successful trials."""
    return [figure for part in PARTS for figure in part.figures(records)]
