"""Predict age from frozen face descriptors: train on four ethnicity codes, test on the fifth (section 4.3, Table 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.extrapolation.networks import NAMES, VARIANTS
from normplace.lab.studies.extrapolation.tabular import network_predictions
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.regression.faces import Faces, load_faces, split_by_ethnicity
from normplace.lab.trials.study import Outcome, Part

LEARNING_RATES = {"none": 1e-3, "first": 1e-3, "last": 3e-3, "every": 3e-3}
"""From the paper's Table 3."""
BINS = 10


@dataclass(frozen=True)
class FacesTrial:
    """One network on the descriptors.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        seed: Random seed of the split, the initial weights and the batch order.
        learning_rate: Adam's learning rate.
        epochs: Number of epochs.
        batch_size: Faces per step.
        width: Width of both hidden layers.
        descriptors: Path of the ``.npz`` file; if empty, the file is searched for.
        device: Device to train on; batches of 128 faces gain nothing from a GPU.
    """

    norm_at: str
    seed: int
    learning_rate: float = 1e-3
    epochs: int = 10
    batch_size: int = 128
    width: int = 128
    descriptors: str = ""
    device: str = "cpu"

    def __post_init__(self) -> None:
        expect_choice("position of the LayerNorm", self.norm_at, VARIANTS)
        expect_ranges(self, "epochs", "batch_size", "width", least=1)


def plan(scale: str) -> Iterator[FacesTrial]:
    """Every variant at the paper's size; its 250 seeds at ``full`` only."""
    for seed in range({"smoke": 2, "laptop": 5, "full": 250}[scale]):
        for norm_at in VARIANTS:
            yield FacesTrial(norm_at, seed, LEARNING_RATES[norm_at], epochs=1 if scale == "smoke" else 10)


def why_unavailable(trial: FacesTrial) -> str | None:
    """Why the trial cannot run: the descriptors are missing; None if it can."""
    return unavailable_reason(load_faces, trial.descriptors)


def run(trial: FacesTrial) -> Outcome:
    """Train, then predict the ages of both test sets."""
    return evaluate(trial, load_faces(trial.descriptors))


def evaluate(trial: FacesTrial, faces: Faces) -> Outcome:
    """Train on some descriptors, then predict the ages of both test sets."""
    generator = torch.Generator().manual_seed(trial.seed)
    split = split_by_ethnicity(faces, generator)
    predictions = network_predictions(
        split,
        trial.norm_at,
        generator,
        width=trial.width,
        epochs=trial.epochs,
        learning_rate=trial.learning_rate,
        batch_size=trial.batch_size,
        device=trial.device,
    )
    # The mean cosine to the training faces is the dot product with the mean of their unit vectors.
    direction = F.normalize(split.train.x, dim=1).mean(0)
    similarity = F.normalize(torch.cat([split.inside.x, split.outside.x]), dim=1) @ direction
    error = torch.cat([predictions.inside - split.inside.y, predictions.outside - split.outside.y])[:, 0].abs()
    order = similarity.argsort()
    return Outcome(
        metrics=predictions.scores(split),
        series={
            "similarity": [float(similarity[decile].mean()) for decile in order.tensor_split(BINS)],
            "error": [float(error[decile].mean()) for decile in order.tensor_split(BINS)],
        },
    )


PART = Part(
    name="faces",
    config=FacesTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"faces, {NAMES[trial.norm_at]}, seed {trial.seed}",
    unavailable_reason=why_unavailable,
)
