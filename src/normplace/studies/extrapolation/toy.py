"""Train one toy network and see what it says far from its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from normplace.errors import UsageError
from normplace.lab.study import Outcome, Part
from normplace.models import MLP
from normplace.norms import LayerNorm
from normplace.tasks.toy import EDGE, FUNCTIONS, growth_exponent, toy_data
from normplace.train.fit import fit

PAPER = "arXiv 2505.14512"
NAMES = {"none": "no LN", "first": "LN first", "last": "LN last", "every": "LN every"}
VARIANTS = tuple(NAMES)
NEAR, FAR, FARTHEST = 10, 100, 1000


@dataclass(frozen=True)
class ToyTrial:
    """One network on one data set.

    Args:
        data: Which function it learns.
        norm_at: Which hidden layers have a LayerNorm.
        seed: Of the data, the initial weights, and nothing else: training is deterministic.
        width: Of both hidden layers.
        points: Of training data.
        epochs: Full-batch Adam steps.
        learning_rate: Adam's.
        activation: Between the layers.
    """

    data: str
    norm_at: str
    seed: int
    width: int = 128
    points: int = 100
    epochs: int = 3000
    learning_rate: float = 1e-3
    activation: str = "relu"

    def __post_init__(self) -> None:
        for name in ("width", "points", "epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}.")


def plan(scale: str) -> Iterator[ToyTrial]:
    """Every data set and variant; the toy part has the paper's own size from ``laptop`` on."""
    seeds = 2 if scale == "smoke" else 5
    epochs = 60 if scale == "smoke" else 3000
    for seed in range(seeds):
        for data in FUNCTIONS:
            for norm_at in VARIANTS:
                yield ToyTrial(data, norm_at, seed, epochs=epochs)


def run(trial: ToyTrial) -> Outcome:
    """Train, then predict near the data and along the axis to a thousand times its edge."""
    generator = torch.Generator().manual_seed(trial.seed)
    data = toy_data(trial.data, trial.points, generator)
    model = MLP(
        (1, trial.width, trial.width, 1),
        norm=partial(LayerNorm, elementwise_affine=False),
        norm_at=trial.norm_at,
        activation=trial.activation,
        generator=generator,
    )
    loss = fit(model, data.x, data.y, epochs=trial.epochs, learning_rate=trial.learning_rate)
    x = torch.linspace(-NEAR * EDGE, NEAR * EDGE, 121)
    distance = torch.logspace(0, 3, 31) * EDGE
    with torch.no_grad():
        prediction = model(x[:, None])[:, 0]
        left, right = model(-distance[:, None])[:, 0], model(distance[:, None])[:, 0]
        reach = {
            at: float(model(torch.tensor([[-at * EDGE], [at * EDGE]])).abs().max()) for at in (NEAR, FAR, FARTHEST)
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
)
