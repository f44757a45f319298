"""Train toy networks and evaluate them far from their data (Figure 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.extrapolation.networks import NORMS, VARIANTS, build_network
from normplace.lab.tasks.regression.toy import EDGE, FUNCTIONS, growth_exponent, toy_data
from normplace.lab.train.fit import fit
from normplace.lab.trials.study import Outcome, Part

NEAR, FAR, FARTHEST = 10, 100, 1000
"""Distances at which predictions are measured, in multiples of the edge of the data."""


@dataclass(frozen=True)
class ToyTrial:
    """One network on one data set.

    Args:
        data: Name of the target function.
        norm_at: Which hidden layers have a norm.
        seed: Random seed of the data and the initial weights; training is deterministic.
        width: Width of both hidden layers.
        points: Number of training points.
        epochs: Number of full-batch Adam steps.
        learning_rate: Adam's learning rate.
        activation: Name of the activation.
        norm: ``layer``, or ``batch``, which predicts with running statistics.
    """

    data: str
    norm_at: str
    seed: int
    width: int = 128
    points: int = 100
    epochs: int = 3000
    learning_rate: float = 1e-3
    activation: str = "relu"
    norm: str = "layer"

    def __post_init__(self) -> None:
        expect_ranges(self, "width", "points", "epochs", least=1)
        expect_choice("norm", self.norm, NORMS)


def plan(scale: str) -> Iterator[ToyTrial]:
    """Every data set and variant, at the paper's size except at ``smoke``."""
    seeds = 2 if scale == "smoke" else 5
    epochs = 60 if scale == "smoke" else 3000
    for seed in range(seeds):
        for data in FUNCTIONS:
            for norm_at in VARIANTS:
                yield ToyTrial(data, norm_at, seed, epochs=epochs)


def run(trial: ToyTrial) -> Outcome:
    """Train, then predict near the data and up to a thousand times its edge."""
    generator = torch.Generator().manual_seed(trial.seed)
    data = toy_data(trial.data, trial.points, generator)
    model = build_network(1, trial.width, trial.norm_at, generator, activation=trial.activation, norm=trial.norm)
    loss = fit(model, data.x, data.y, epochs=trial.epochs, learning_rate=trial.learning_rate)
    x = torch.linspace(-NEAR * EDGE, NEAR * EDGE, 121)
    distance = torch.logspace(0, 3, 31) * EDGE
    with torch.no_grad():
        prediction = model(x[:, None])[:, 0]
        left, right = model(-distance[:, None])[:, 0], model(distance[:, None])[:, 0]
        reach = {
            factor: float(model(torch.tensor([[-factor * EDGE], [factor * EDGE]])).abs().max())
            for factor in (NEAR, FAR, FARTHEST)
        }
    return Outcome(
        metrics={
            "train_mse": loss,
            "largest_target": float(data.y.abs().max()),
            "reach_near": reach[NEAR],
            "reach_farthest": reach[FARTHEST],
            "growth": growth_exponent(reach[FAR], reach[FARTHEST], FARTHEST / FAR),
        },
        series={
            "x": x.tolist(),
            "prediction": prediction.tolist(),
            "distance": distance.tolist(),
            "magnitude": torch.maximum(left.abs(), right.abs()).tolist(),
        },
    )


PART = Part(
    name="toy",
    config=ToyTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.data}, LN {trial.norm_at}, seed {trial.seed}",
    in_demo=lambda trial: trial.seed < 3,
)
