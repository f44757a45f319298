"""The study's claims, part by part."""

from normplace.lab.studies.causalrn.claims import (
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
    state,
)

PARTS = (
    *(copying_fixed, ablation, state, copying_variable, head, scaling, recall, lookup, language, pretraining, images),
    *(published_copying, published_ablation, opponents, generalization, expansion),
)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
