"""The study's claims, part by part."""

from normplace.lab.studies.extrapolation.claims import (
    activations,
    area,
    bounds,
    certificates,
    faces,
    kernels,
    linearized,
    protein,
    sequence,
    structure,
    toy,
    variants,
    weak_faces,
    wide,
)

PARTS = (
    *(toy, kernels, structure, activations, wide, linearized, bounds, certificates),
    *(variants, sequence, protein, area, faces, weak_faces),
)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
