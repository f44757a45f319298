"""Compare trained networks with the kernel's prediction as the width grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.lab.studies.extrapolation.kernels import limit
from normplace.lab.studies.extrapolation.networks import NAMES, build_network
from normplace.lab.tasks.regression.toy import EDGE, toy_data
from normplace.lab.trials.study import Outcome, Part
from normplace.ntk import infinite, predict

WIDTHS = {"smoke": (32, 128), "laptop": (64, 256, 1024), "full": (64, 256, 1024, 2048, 4096)}
COMPARED = ("none", "first")
POINTS = 20


@dataclass(frozen=True)
class WideTrial:
    """One network trained by gradient descent, compared with the prediction of its infinite-width kernel.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        width: Width of both hidden layers.
        seed: Random seed of the initial weights; all trials share the data.
        steps: Number of gradient steps; the learning rate is the inverse of the kernel's largest eigenvalue.
        bias_std: Standard deviation of the biases. With the published 0.1, nearly all kinks of a one-dimensional ReLU
            network are near zero, few units shape the function elsewhere, and the limit is approached very slowly. A
            value of 1 spreads the kinks.
    """

    norm_at: str
    width: int
    seed: int
    steps: int = 200
    bias_std: float = 1.0


def plan(scale: str) -> Iterator[WideTrial]:
    """Every width with and without a LayerNorm; the narrower widths of ``laptop`` need more seeds."""
    for seed in range({"smoke": 2, "laptop": 20, "full": 5}[scale]):
        for norm_at in COMPARED:
            for width in WIDTHS[scale]:
                yield WideTrial(norm_at, width, seed, steps=20 if scale == "smoke" else 200)


def descend(model: nn.Module, x: Tensor, y: Tensor, rate: float, steps: int) -> None:
    """Train by gradient descent on half the sum of squared errors."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * F.mse_loss(model(x), y, reduction="sum")).backward()
        optimizer.step()


def run(trial: WideTrial) -> Outcome:
    """Train, predict the trained network from the infinite-width kernel, and measure the distance between the two."""
    device = pick_device("auto")
    data = toy_data("sinusoid", POINTS, torch.Generator().manual_seed(0))
    x, y = data.x.double(), data.y.double()
    far = torch.linspace(-3 * EDGE, 3 * EDGE, 61, dtype=torch.float64)[:, None]
    generator = torch.Generator().manual_seed(trial.seed)
    options = {"parametrization": "ntk", "bias_std": trial.bias_std}
    model = build_network(1, trial.width, trial.norm_at, generator, **options).to(device)
    kernel, cross = (infinite(limit(trial.norm_at, trial.bias_std), a, x) for a in (x, far))
    assert isinstance(kernel, Tensor)
    assert isinstance(cross, Tensor)
    rate = 1 / float(torch.linalg.eigvalsh(kernel)[-1])

    def outputs(points: Tensor) -> Tensor:
        with torch.no_grad():
            return model(points.to(device, torch.float32)).double().cpu()

    prediction = predict(
        kernel, y, cross, time=trial.steps, learning_rate=rate, f0_train=outputs(x), f0_test=outputs(far)
    )
    descend(model, x.to(device, torch.float32), y.to(device, torch.float32), rate, trial.steps)
    trained = outputs(far)
    return Outcome(
        metrics={"distance": float((trained - prediction.mean).square().mean().sqrt() / y.square().mean().sqrt())},
        series={
            "x": far[:, 0].tolist(),
            "trained": trained[:, 0].tolist(),
            "predicted": prediction.mean[:, 0].tolist(),
        },
    )


PART = Part(
    "wide", WideTrial, plan, run, lambda trial: f"width {trial.width}, {NAMES[trial.norm_at]}, seed {trial.seed}"
)
