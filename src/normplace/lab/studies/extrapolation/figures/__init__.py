"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.drawing import figures_of
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

figures = figures_of(
    toy, kernels, activations, wide, linearized, bounds, variants, sequence, protein, faces, weak_faces
)
