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
from normplace.lab.studies.drawing import figures_of

figures = figures_of(
    copying_fixed,
    copying_variable,
    ablation,
    head,
    recall,
    lookup,
    language,
    pretraining,
    images,
    scaling,
    published_copying,
    published_ablation,
    opponents,
    generalization,
    expansion,
)
