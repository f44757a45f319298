"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.periln.figures import bound, initialization, pretraining, training
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure

PARTS = (training, initialization, pretraining, bound)


def figures(records: Records) -> list[Figure]:
    """Draw the figures of every part that has successful trials."""
    return [figure for part in PARTS for figure in part.figures(records)]
