"""Image classification with pixels as a sequence, at equal parameter counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.language import matched_network
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.studies.causalrn.training import TrainedTrial
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.sequences.images import CIFAR10, DIGITS, LOADERS, ImageData, PixelSequences, load_images
from normplace.lab.train.sequence import fit_sequence
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import SequenceModel, count_parameters

SEEDS: dict[str, dict[str, int]] = {"smoke": {DIGITS: 1}, "laptop": {}, "full": {DIGITS: 5, CIFAR10: 3}}
"""Seeds by scale and data set; none at ``laptop``, where training would take too long."""
SMOKE: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "steps": 3, "batch_size": 4, "exam": 8}
DATA: dict[str, dict[str, Any]] = {
    DIGITS: {"dim": 64, "depth": 2, "heads": 2, "steps": 2000},
    CIFAR10: {"dim": 128, "depth": 4, "heads": 4, "steps": 15_000, "precision": "bfloat16"},
}
"""Sizes by data set."""


@dataclass(frozen=True, kw_only=True)
class ImageTrial(TrainedTrial):
    """One network on images.

    Args:
        network: Name of the network, at the Transformer's parameter count.
        data: ``digits`` or ``cifar10``.
        heads: Number of attention heads.
        exam: Largest number of test images.
        every: Steps between evaluations.
    """

    network: str
    data: str = DIGITS
    heads: int = 2
    exam: int = 10_000
    every: int = 200
    warm_up: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, NETWORKS)
        expect_choice("image data set", self.data, LOADERS)


def plan(scale: str) -> Iterator[ImageTrial]:
    """Every network on every data set of the scale."""
    for data, seeds in SEEDS[scale].items():
        sizes = SMOKE if scale == "smoke" else DATA[data]
        for seed in range(seeds):
            for network in NETWORKS:
                yield ImageTrial(network=network, data=data, seed=seed, **sizes)


def build(trial: ImageTrial, task: PixelSequences) -> SequenceModel:
    """The trial's network, with the parameter count of the Transformer."""
    shape = {"heads": trial.heads, "context": task.context}
    return matched_network(trial.network, task.vocab_size, trial.dim, trial.depth, **shape)


def run(trial: ImageTrial) -> Outcome:
    """Train and test."""
    device = pick_device(trial.device)
    data: ImageData = load_images(trial.data).to(device)
    model = trial.initialize(lambda: build(trial, data.train))
    valid: list[float] = []

    def accuracy(part: PixelSequences) -> float:
        return trial.accuracies(model, part.evaluation_batch(trial.exam), part.score)["string"]

    generator = torch.Generator(device).manual_seed(trial.seed)
    training = trial.training(schedule="cosine", every=trial.every)
    losses = fit_sequence(model, data.train, training, generator, lambda _: valid.append(accuracy(data.valid)))
    return Outcome(
        metrics={"accuracy": accuracy(data.test), "valid": valid[-1], "parameters": count_parameters(model)},
        series={"step": losses.steps, "loss": losses.loss, "valid": valid},
    )


PART = Part(
    name="images",
    config=ImageTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"images of {trial.data}, {TITLES[trial.network]}, seed {trial.seed}",
    unavailable_reason=lambda trial: unavailable_reason(load_images, trial.data),
)
