"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.figures import (
    activations,
    bounds,
    faces,
    kernels,
    linearized,
    protein,
    sequence,
    toy,
    variants,
    weak_faces,
    wide,
)
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure

PARTS = (toy, kernels, activations, wide, linearized, bounds, variants, sequence, protein, faces, weak_faces)


def figures(records: Records) -> list[Figure]:
    """Draw the figures of every part that has successful trials."""
    return [figure for part in PARTS for figure in part.figures(records)]
