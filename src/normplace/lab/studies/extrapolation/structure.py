"""The structure of the tangent kernel beside its diagonal (Figure 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace.lab.studies.extrapolation.kernels import REACH, grid
from normplace.lab.studies.extrapolation.networks import NAMES, VARIANTS, build_network
from normplace.lab.tasks.regression.toy import growth_exponent
from normplace.lab.trials.study import Outcome, Part
from normplace.ntk import empirical

FAR = 5.0
"""Inputs beyond it are compared; nearer ones feel the biases."""
FIRST_SEED = 100
"""The seeds differ from those of the part ``kernels``, whose kernels were known before."""


@dataclass(frozen=True)
class StructureTrial:
    """The kernel of one network at initialization.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        seed: Random seed of the initial weights.
        width: Width of both hidden layers.
    """

    norm_at: str
    seed: int
    width: int = 128


def plan(scale: str) -> Iterator[StructureTrial]:
    """Every variant at the paper's size."""
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if scale == "smoke" else 10)):
        for norm_at in VARIANTS:
            yield StructureTrial(norm_at, seed)


def run(trial: StructureTrial) -> Outcome:
    """Compare the kernel within and between the two halves of the line, and follow it into the corner x, -x."""
    generator = torch.Generator().manual_seed(trial.seed)
    model = build_network(1, trial.width, trial.norm_at, generator, parametrization="ntk", dtype=torch.float64)
    x = grid()
    kernel = empirical(model, x)
    corner = kernel.flip(1).diagonal()  # of x and -x
    far = (x.abs() >= FAR)[:, 0]
    pairs = far[:, None] & far
    same_sign = (x * x.T > 0) & pairs
    same, opposite = kernel[same_sign], kernel[pairs & ~same_sign]
    middle = int((x > 10).nonzero()[0][0])
    return Outcome(
        metrics={
            "corner_growth": growth_exponent(
                float(corner[middle].abs()), float(corner[-1].abs()), REACH / float(x[middle])
            ),
            "same_sign_spread": float(same.std() / same.mean()),
            "contrast": float(1 - opposite.mean() / same.mean()),
        }
    )


PART = Part(
    name="structure",
    config=StructureTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"structure of the kernel, {NAMES[trial.norm_at]}, seed {trial.seed}",
)
