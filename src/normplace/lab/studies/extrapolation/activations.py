"""Tangent kernels of networks with other activations, finite and infinitely wide (Appendix C)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace.lab.studies.extrapolation.kernels import grid, outward_growth
from normplace.lab.studies.extrapolation.networks import NAMES, build_network
from normplace.lab.trials.study import Outcome, Part
from normplace.models.activations import variance_gain
from normplace.ntk import FullyConnected, empirical, infinite

ACTIVATIONS = {
    "leaky_relu": "leaky ReLU",
    "gelu": "GELU",
    "silu": "SiLU",
    "erf": "erf",
    "relu2": "ReLU²",
    "relu3": "ReLU³",
}
"""Display names of the activations besides ReLU."""
DEGREES = {"relu2": 2, "relu3": 3}
"""Degrees of the homogeneous activations other than 1."""
COMPARED = ("none", "first")
DEPTH = 2


@dataclass(frozen=True)
class ActivationTrial:
    """The kernel of one network at initialization.

    Args:
        activation: One of :data:`ACTIVATIONS`.
        norm_at: Which hidden layers have a LayerNorm.
        seed: Random seed of the initial weights.
        width: Width of both hidden layers.
    """

    activation: str
    norm_at: str
    seed: int
    width: int = 512


def plan(scale: str) -> Iterator[ActivationTrial]:
    """Every activation with and without a LayerNorm."""
    for seed in range(2 if scale == "smoke" else 5):
        for activation in ACTIVATIONS:
            for norm_at in COMPARED:
                yield ActivationTrial(activation, norm_at, seed)


def run(trial: ActivationTrial) -> Outcome:
    """Compute the kernel on the line of Figure 2 and that of the infinite-width limit."""
    generator = torch.Generator().manual_seed(trial.seed)
    options = {"activation": trial.activation, "parametrization": "ntk", "dtype": torch.float64}
    model = build_network(1, trial.width, trial.norm_at, generator, **options)
    spec = FullyConnected(
        depth=DEPTH,
        activation=trial.activation,
        weight_variance=variance_gain(trial.activation),
        last_weight_variance=None,
        bias_variance=0.01,
        norm="layer",
        norm_at=trial.norm_at,
    )
    x = grid()
    kernel, limit = empirical(model, x), infinite(spec, x)
    return Outcome(
        metrics={
            "diagonal_growth": outward_growth(kernel.diagonal()),
            "infinite_growth": outward_growth(limit.diagonal()),
            "distance_to_infinite": float((kernel - limit).norm() / limit.norm()),
        },
        series={
            "x": x[:, 0].tolist(),
            "diagonal": kernel.diagonal().tolist(),
            "infinite": limit.diagonal().tolist(),
        },
    )


PART = Part(
    name="activations",
    config=ActivationTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"kernel, {ACTIVATIONS[trial.activation]}, {NAMES[trial.norm_at]}, seed {trial.seed}",
)
