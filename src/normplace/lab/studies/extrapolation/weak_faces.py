"""Age from weaker face descriptors, to test whether the backbone explains the small effect of LayerNorm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from normplace.lab.studies.extrapolation import faces
from normplace.lab.studies.extrapolation.faces import LEARNING_RATES, FacesTrial, evaluate
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.tasks.regression.faces import load_faces
from normplace.lab.trials.study import Outcome, Part

COMPARED = ("none", "first")
FIRST_SEED = 1000
COMPONENTS = 18
"""Random projections that leave an in-distribution R² near the published 0.66 to 0.68; chosen on other seeds."""


@dataclass(frozen=True)
class WeakFacesTrial(FacesTrial):
    """One network on descriptors that were projected to fewer dimensions.

    Args:
        components: Number of random projections of the descriptors; 0 leaves them as they are.
    """

    components: int = COMPONENTS


def plan(scale: str) -> Iterator[WeakFacesTrial]:
    """With and without a LayerNorm, on whole and on projected descriptors."""
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if scale == "smoke" else 8)):
        for components in (0, COMPONENTS):
            for norm_at in COMPARED:
                epochs = 1 if scale == "smoke" else 10
                yield WeakFacesTrial(norm_at, seed, LEARNING_RATES[norm_at], epochs=epochs, components=components)


def run(trial: WeakFacesTrial) -> Outcome:
    """Project the descriptors, train, and predict the ages of both test sets."""
    data = load_faces(trial.descriptors)
    if trial.components:
        generator = torch.Generator().manual_seed(trial.seed)
        directions = torch.randn(data.features.shape[1], trial.components, generator=generator)
        data = replace(data, features=data.features @ directions)
    return evaluate(trial, data)


PART = Part(
    name="weak-faces",
    config=WeakFacesTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"faces, {trial.components or 'all'} components, {NAMES[trial.norm_at]}, seed {trial.seed}",
    unavailable_reason=faces.why_unavailable,
)
