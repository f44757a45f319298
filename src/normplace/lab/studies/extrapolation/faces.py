"""Learn ages of four ethnicity codes from frozen descriptors, predict the fifth (the paper's section 4.3, Table 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from normplace.errors import expect_at_least, unknown
from normplace.lab.studies.extrapolation.network import NAMES, VARIANTS
from normplace.lab.studies.extrapolation.tabular import network_predictions
from normplace.lab.tasks.faces import load_faces, obstacle, split_by_ethnicity
from normplace.lab.trials.study import Outcome, Part

LEARNING_RATES = {"none": 1e-3, "first": 1e-3, "last": 3e-3, "every": 3e-3}
"""The paper's Table 3."""
BINS = 10


@dataclass(frozen=True)
class FacesTrial:
    """One network on the descriptors.

    Args:
        norm_at: Where its LayerNorm stands.
        seed: Of the split, the initial weights and the order of batches.
        learning_rate: Adam's.
        epochs: How often every face is seen.
        batch_size: Faces in a step.
        width: Of both hidden layers.
        descriptors: The ``.npz`` file; by default one is looked for.
        device: Where it trains; steps of 128 rows gain nothing from a GPU.
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
        if self.norm_at not in VARIANTS:
            raise unknown("choice of layers", self.norm_at, VARIANTS)
        expect_at_least(1, self, "epochs", "batch_size", "width")


def plan(scale: str) -> Iterator[FacesTrial]:
    """Every variant at the paper's size; its 250 seeds only at ``full``."""
    for seed in range({"smoke": 2, "laptop": 5, "full": 250}[scale]):
        for norm_at in VARIANTS:
            yield FacesTrial(norm_at, seed, LEARNING_RATES[norm_at], epochs=1 if scale == "smoke" else 10)


def ready(trial: FacesTrial) -> str | None:
    """Why the trial cannot run here, if so: the descriptors are missing."""
    return obstacle(trial.descriptors)


def run(trial: FacesTrial) -> Outcome:
    """Train, then predict the ages of both test sets."""
    generator = torch.Generator().manual_seed(trial.seed)
    split = split_by_ethnicity(load_faces(trial.descriptors), generator)
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
    # The mean cosine to the training faces is the cosine to the mean of their directions, times its length.
    direction = F.normalize(split.train.x, dim=1).mean(0)
    similarity = F.normalize(torch.cat([split.inside.x, split.outside.x]), dim=1) @ direction
    error = torch.cat([predictions.inside - split.inside.y, predictions.outside - split.outside.y])[:, 0].abs()
    order = similarity.argsort()
    return Outcome(
        metrics=predictions.scores(split),
        series={
            "similarity": [float(similarity[chosen].mean()) for chosen in order.tensor_split(BINS)],
            "error": [float(error[chosen].mean()) for chosen in order.tensor_split(BINS)],
        },
    )


PART = Part(
    name="faces",
    config=FacesTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"faces, {NAMES[trial.norm_at]}, seed {trial.seed}",
    ready=ready,
)
