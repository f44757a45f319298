"""Trained networks compared with the prediction of their own tangent kernel at initialization, as the width grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.lab.studies.extrapolation.networks import NAMES, build_network
from normplace.lab.studies.extrapolation.wide import COMPARED, POINTS, descend
from normplace.lab.tasks.regression.toy import EDGE, toy_data
from normplace.lab.trials.study import Outcome, Part
from normplace.ntk import empirical, predict

WIDTHS = {"smoke": (32, 128), "laptop": (64, 256, 1024), "full": (64, 256, 1024, 2048)}


@dataclass(frozen=True)
class LinearizedTrial:
    """One network trained by gradient descent.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        width: Width of both hidden layers.
        seed: Random seed of the initial weights; all trials share the data.
        steps: Number of gradient steps; the learning rate is the inverse of the kernel's largest eigenvalue.
        bias_std: Standard deviation of the biases; 1 as in the part ``wide``.
    """

    norm_at: str
    width: int
    seed: int
    steps: int = 200
    bias_std: float = 1.0


def plan(scale: str) -> Iterator[LinearizedTrial]:
    """Every width with and without a LayerNorm."""
    for seed in range(2 if scale == "smoke" else 8):
        for norm_at in COMPARED:
            for width in WIDTHS[scale]:
                yield LinearizedTrial(norm_at, width, seed, steps=20 if scale == "smoke" else 200)


def run(trial: LinearizedTrial) -> Outcome:
    """Predict the trained network from its kernel at initialization, train it, and follow it far from the data."""
    data = toy_data("sinusoid", POINTS, torch.Generator().manual_seed(0))
    x, y = data.x.double(), data.y.double()
    near = torch.linspace(-3 * EDGE, 3 * EDGE, 61, dtype=torch.float64)[:, None]
    outward = EDGE * 10.0 ** torch.linspace(0, 3, 31, dtype=torch.float64)[:, None]
    far = torch.cat([-outward, outward])
    generator = torch.Generator().manual_seed(trial.seed)
    options = {"parametrization": "ntk", "bias_std": trial.bias_std, "dtype": torch.float64}
    model = build_network(1, trial.width, trial.norm_at, generator, **options)
    kernel, cross = empirical(model, x), empirical(model, near, x)
    rate = 1 / float(torch.linalg.eigvalsh(kernel)[-1])

    def outputs(points: Tensor) -> Tensor:
        with torch.no_grad():
            return model(points)

    expected = predict(
        kernel, y, cross, time=trial.steps, learning_rate=rate, f0_train=outputs(x), f0_test=outputs(near)
    ).mean
    descend(model, x, y, rate, trial.steps)
    scale = float(y.square().mean().sqrt())
    return Outcome(
        metrics={
            "own_distance": float((outputs(near) - expected).square().mean().sqrt()) / scale,
            "train_error": float((outputs(x) - y).square().mean().sqrt()) / scale,
            "reach": float(outputs(far).abs().max() / y.abs().max()),
        }
    )


PART = Part(
    name="linearized",
    config=LinearizedTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"own kernel, width {trial.width}, {NAMES[trial.norm_at]}, seed {trial.seed}",
)
