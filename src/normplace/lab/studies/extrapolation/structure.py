"""The structure of the tangent kernel off its diagonal (Figure 2)."""

from __future__ import annotations

from collections.abc import Iterator

from normplace.lab.studies.extrapolation.kernels import KernelTrial, grid, initial_kernel, outward_growth
from normplace.lab.studies.extrapolation.networks import NAMES, VARIANTS
from normplace.lab.trials.study import Outcome, Part

FAR = 5.0
"""Inputs beyond it are compared; nearer ones feel the biases."""
FIRST_SEED = 100
"""The seeds differ from those of the part ``kernels``, whose kernels were known before."""


def plan(scale: str) -> Iterator[KernelTrial]:
    """Every variant at the paper's size."""
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if scale == "smoke" else 10)):
        for norm_at in VARIANTS:
            yield KernelTrial(norm_at, seed)


def run(trial: KernelTrial) -> Outcome:
    """Compare the kernel within and between the two halves of the line, and follow it into the corner x, -x."""
    x, kernel = grid(), initial_kernel(trial)
    corner = kernel.flip(1).diagonal()  # of x and -x
    far = (x.abs() >= FAR)[:, 0]
    pairs = far[:, None] & far
    same_sign = (x * x.T > 0) & pairs
    same, opposite = kernel[same_sign], kernel[pairs & ~same_sign]
    return Outcome(
        metrics={
            "corner_growth": outward_growth(corner.abs()),
            "same_sign_spread": float(same.std() / same.mean()),
            "contrast": float(1 - opposite.mean() / same.mean()),
        }
    )


PART = Part(
    name="structure",
    config=KernelTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"structure of the kernel, {NAMES[trial.norm_at]}, seed {trial.seed}",
)
