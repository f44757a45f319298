"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.causalrn.figures import (
    ablation,
    copying_fixed,
    copying_variable,
    expansion,
    generalization,
    head,
    images,
    language,
    lookup,
    opponents,
    pretraining,
    published_ablation,
    published_copying,
    recall,
    scaling,
)
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure

PARTS = (
    *(copying_fixed, copying_variable, ablation, head, recall, lookup, language, pretraining, images, scaling),
    *(published_copying, published_ablation, opponents, generalization, expansion),
)


def figures(records: Records) -> list[Figure]:
    """Draw the figures of every part that has successful trials."""
    return [figure for part in PARTS for figure in part.figures(records)]
