"""The bounds of Theorem 3.3 against the largest prediction that a search over inputs finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import expect_ranges
from normplace.lab.studies.extrapolation.kernels import limit
from normplace.lab.studies.extrapolation.networks import NAMES, VARIANTS
from normplace.lab.tasks.regression.toy import NOISE, toy_data
from normplace.lab.trials.study import Outcome, Part
from normplace.ntk import bound, infinite, predict

FEATURES = (1, 32)
POINTS = {1: 20, 32: 64}
JITTER = 1e-6
"""Added to the kernel's diagonal, so that two points that nearly coincide do not make it singular."""


@dataclass(frozen=True)
class BoundTrial:
    """The infinitely wide network of one data set.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        features: Number of input features: 1, the sinusoid, or more, a sinusoid along a random direction.
        seed: Random seed of data and search.
        directions: Random directions of the search.
        rounds: Rounds in which the best inputs are improved.
    """

    norm_at: str
    features: int
    seed: int
    directions: int = 256
    rounds: int = 40

    def __post_init__(self) -> None:
        expect_ranges(self, "features", "directions", "rounds", least=1)


def plan(scale: str) -> Iterator[BoundTrial]:
    """Every variant on a line and in 32 dimensions."""
    for seed in range(2 if scale == "smoke" else 5):
        for features in FEATURES:
            for norm_at in VARIANTS:
                quick = {"directions": 8, "rounds": 2} if scale == "smoke" else {}
                yield BoundTrial(norm_at, features, seed, **quick)


def _data(features: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    points = POINTS.get(features, 64)
    if features == 1:
        data = toy_data("sinusoid", points, generator)
        return data.x.double(), data.y.double()
    x = torch.randn(points, features, generator=generator, dtype=torch.float64)
    direction = torch.randn(features, 1, generator=generator, dtype=torch.float64)
    noise = NOISE * torch.randn(points, 1, generator=generator, dtype=torch.float64)
    return x, torch.sin(2 * x @ (direction / direction.norm())) + noise


def run(trial: BoundTrial) -> Outcome:
    """Predict at convergence, search for the input with the largest prediction, and compute the bounds."""
    generator = torch.Generator().manual_seed(trial.seed)
    x, y = _data(trial.features, generator)
    spec = limit(trial.norm_at)
    kernel = infinite(spec, x)

    def predictions(points: Tensor) -> Tensor:
        return predict(kernel, y, infinite(spec, points, x), jitter=JITTER).mean[:, 0].abs()

    starts = torch.cat([x, torch.randn(trial.directions, trial.features, generator=generator, dtype=torch.float64)])
    scales = 10.0 ** torch.linspace(-3, 6, 46, dtype=torch.float64)
    points = (scales[:, None, None] * starts).flatten(0, 1)
    values = predictions(points)
    best = points[values.topk(32).indices]
    largest = float(values.max())
    step = 0.3
    for _ in range(trial.rounds):
        shape = (64, *best.shape)
        moved = best * (1 + step * torch.randn(shape, generator=generator, dtype=torch.float64))
        candidates = torch.cat([best, moved.flatten(0, 1)])
        values = predictions(candidates)
        best, largest = candidates[values.topk(32).indices], max(largest, float(values.max()))
        step *= 0.9
    top = float(y.abs().max())
    if trial.norm_at == "none":
        return Outcome(metrics={"largest": largest / top})
    # Θ(x, x) depends on the length of x alone.
    radii = torch.cat([torch.zeros(1, dtype=torch.float64), 10.0 ** torch.linspace(-6, 9, 600, dtype=torch.float64)])
    ray = radii[:, None] * torch.ones(1, trial.features, dtype=torch.float64)
    supremum = max(float(infinite(spec, ray).diagonal().max()), float(kernel.diagonal().max()))
    limits = bound(kernel, y, diagonal_sup=supremum, jitter=JITTER)
    return Outcome(
        metrics={
            "largest_normed": largest / top,
            "over_norm_bound": largest / limits.from_norm,
            "over_eigenvalue_bound": largest / limits.from_eigenvalue,
            "over_crude_bound": largest / limits.crude,
            "over_summarised_bound": largest / limits.as_summarised,
            "lambda_min": limits.lambda_min,
            "diagonal_sup": supremum,
        }
    )


PART = Part(
    name="bounds",
    config=BoundTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"bound, {trial.features} features, {NAMES[trial.norm_at]}, seed {trial.seed}",
)
