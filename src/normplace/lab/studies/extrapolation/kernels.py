"""The tangent kernel of random networks on a line, and that of their infinite-width limit (Figure 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.lab.studies.extrapolation.networks import NAMES, VARIANTS, build_network
from normplace.lab.tasks.regression.toy import growth_exponent
from normplace.lab.trials.study import Outcome, Part
from normplace.ntk import FullyConnected, empirical, infinite

REACH = 25.0
POINTS = 16


@dataclass(frozen=True)
class KernelTrial:
    """The kernel of one network at initialization.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        seed: Random seed of the initial weights.
        width: Width of both hidden layers.
    """

    norm_at: str
    seed: int
    width: int = 128


def plan(scale: str) -> Iterator[KernelTrial]:
    """Every variant, at the paper's size; fewer seeds at ``smoke``."""
    for seed in range(2 if scale == "smoke" else 5):
        for norm_at in VARIANTS:
            yield KernelTrial(norm_at, seed)


def grid() -> Tensor:
    """The inputs as a column; zero is not included."""
    return torch.linspace(-REACH, REACH, POINTS, dtype=torch.float64)[:, None]


def limit(norm_at: str, bias_std: float = 0.1) -> FullyConnected:
    """The infinite-width limit of the trials' networks."""
    return FullyConnected(
        depth=2,
        weight_variance=2.0,
        last_weight_variance=None,
        bias_variance=bias_std**2,
        norm="layer",
        norm_at=norm_at,
    )


def initial_kernel(trial: KernelTrial) -> Tensor:
    """The kernel on the grid of a network with initial weights in NTK parametrization."""
    generator = torch.Generator().manual_seed(trial.seed)
    model = build_network(1, trial.width, trial.norm_at, generator, parametrization="ntk", dtype=torch.float64)
    return empirical(model, grid())


def outward_growth(values: Tensor) -> float:
    """The exponent with which values on the grid grow from the first input above 10 to the last."""
    x = grid()
    middle = int((x > 10).nonzero()[0][0])
    return growth_exponent(float(values[middle]), float(values[-1]), REACH / float(x[middle]))


def run(trial: KernelTrial) -> Outcome:
    """Compare the kernel of a network with that of its infinite-width limit."""
    kernel = initial_kernel(trial)
    wide = infinite(limit(trial.norm_at), grid())
    assert isinstance(wide, Tensor)
    diagonal = kernel.diagonal()
    upper = torch.triu_indices(POINTS, POINTS)
    return Outcome(
        metrics={
            "diagonal_growth": outward_growth(diagonal),
            "diagonal_largest": float(diagonal.max()),
            "distance_to_infinite": float((kernel - wide).norm() / wide.norm()),
        },
        series={"kernel": kernel[upper[0], upper[1]].tolist(), "infinite": wide[upper[0], upper[1]].tolist()},
    )


PART = Part(
    name="kernels",
    config=KernelTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"kernel, {NAMES[trial.norm_at]}, seed {trial.seed}",
    in_demo=lambda trial: True,
)
