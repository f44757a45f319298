"""The study's claims, part by part."""

from normplace.lab.studies.causalrn.claims import (
    ablation,
    copying_fixed,
    copying_variable,
    head,
    language,
    recall,
    scaling,
    state,
)

PARTS = (copying_fixed, ablation, state, copying_variable, head, scaling, recall, language)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
