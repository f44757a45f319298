"""Trained networks beside the kernel's prediction, as the width grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from normplace.lab.claims import Check, Claim, by_seed, pick
from normplace.lab.report.specs import curves
from normplace.lab.results import Line
from normplace.lab.study import Figure, Outcome, Part
from normplace.models import MLP
from normplace.norms import LayerNorm
from normplace.ntk import infinite, predict
from normplace.studies.extrapolation.kernels import limit
from normplace.studies.extrapolation.toy import NAMES, PAPER
from normplace.tasks.toy import EDGE, toy_data

WIDTHS = {"smoke": (32, 128), "laptop": (64, 256, 1024), "full": (64, 256, 1024, 2048, 4096)}
COMPARED = ("none", "first")
POINTS = 20


@dataclass(frozen=True)
class WideTrial:
    """One network trained by plain gradient descent, beside what the kernel of its limit predicts for it.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        width: Of both hidden layers.
        seed: Of the initial weights; the data is the same for all.
        steps: Gradient steps, at the inverse of the kernel's largest eigenvalue.
        bias_std: Of the biases. The published 0.1 puts nearly all kinks of a one-dimensional ReLU network next to zero,
            so that few units shape the function elsewhere and the limit is approached very slowly; 1 spreads them.
    """

    norm_at: str
    width: int
    seed: int
    steps: int = 200
    bias_std: float = 1.0


def plan(scale: str) -> Iterator[WideTrial]:
    """Every width, with and without a LayerNorm."""
    for seed in range(2 if scale == "smoke" else 5):
        for norm_at in COMPARED:
            for width in WIDTHS[scale]:
                yield WideTrial(norm_at, width, seed, steps=20 if scale == "smoke" else 200)


def run(trial: WideTrial) -> Outcome:
    """Train, predict the same network's course from the infinite kernel, and measure how far apart they end."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = toy_data("sinusoid", POINTS, torch.Generator().manual_seed(0))
    x, y = data.x.double(), data.y.double()
    far = torch.linspace(-3 * EDGE, 3 * EDGE, 61, dtype=torch.float64)[:, None]
    model = MLP(
        (1, trial.width, trial.width, 1),
        norm=partial(LayerNorm, elementwise_affine=False),
        norm_at=trial.norm_at,
        parametrization="ntk",
        bias_std=trial.bias_std,
        generator=torch.Generator().manual_seed(trial.seed),
    ).to(device)
    kernel, cross = (infinite(limit(trial.norm_at, trial.bias_std), a, x) for a in (x, far))
    assert isinstance(kernel, torch.Tensor)
    assert isinstance(cross, torch.Tensor)
    rate = 1 / float(torch.linalg.eigvalsh(kernel)[-1])

    def outputs(points: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(points.to(device, torch.float32)).double().cpu()

    course = predict(kernel, y, cross, time=trial.steps, learning_rate=rate, f0_train=outputs(x), f0_test=outputs(far))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    inputs, targets = x.to(device, torch.float32), y.to(device, torch.float32)
    for _ in range(trial.steps):
        optimizer.zero_grad()
        (0.5 * F.mse_loss(model(inputs), targets, reduction="sum")).backward()
        optimizer.step()
    trained = outputs(far)
    return Outcome(
        metrics={"distance": float((trained - course.mean).square().mean().sqrt() / y.square().mean().sqrt())},
        series={
            "x": far[:, 0].tolist(),
            "trained": trained[:, 0].tolist(),
            "predicted": course.mean[:, 0].tolist(),
        },
    )


PART = Part(
    "wide", WideTrial, plan, run, lambda trial: f"width {trial.width}, {NAMES[trial.norm_at]}, seed {trial.seed}"
)


def shrinkage(lines: Sequence[Line], norm_at: str) -> dict[int, float]:
    """The distance to the prediction at the largest width over that at the smallest, by seed."""
    chosen = pick(lines, PART.name, norm_at=norm_at)
    widths = sorted({line.config["width"] for line in chosen})
    if len(widths) < 2:
        return {}
    narrow, broad = (by_seed(pick(chosen, PART.name, width=width), "distance") for width in (widths[0], widths[-1]))
    return {seed: broad[seed] / narrow[seed] for seed in narrow.keys() & broad.keys()}


CLAIMS = (
    Claim(
        id="wide-networks-follow-the-kernel",
        paper=f"{PAPER}, Section 2, after Lee et al. 2019, arXiv 1902.06720",
        statement="As the width grows, trained networks approach what the infinite-width kernel predicts for them.",
        checks=tuple(
            Check(
                f"distance to the prediction, widest over narrowest, {NAMES[norm_at]}",
                partial(shrinkage, norm_at=norm_at),
                at_most=0.5,
            )
            for norm_at in COMPARED
        ),
        seeds=5,
        note="Root mean square distance on three times the range of the data, over that of the targets, after 200 "
        "gradient steps. Biases of deviation 1 (not the published 0.1, with which one-dimensional networks approach "
        "their limit very slowly), data and threshold are ours.",
    ),
)


def figures(lines: Sequence[Line]) -> list[Figure]:
    """The distance to the prediction against the width, every seed a point of a line."""
    chosen = pick(lines, PART.name)
    if not chosen:
        return []
    rows = [
        {
            "network": NAMES[line.config["norm_at"]],
            "seed": line.seed,
            "width": line.config["width"],
            "distance": line.metrics["distance"],
        }
        for line in chosen
    ]
    spec = curves(
        x={"field": "width", "title": "width", "scale": {"type": "log", "base": 2}},
        y={"field": "distance", "title": "relative distance", "scale": {"type": "log"}, "aggregate": "mean"},
        series="network",
        order=[NAMES[norm_at] for norm_at in COMPARED],
    )
    return [
        Figure(
            title="Distance between trained networks and the kernel's prediction, against the width",
            caption=(
                "Mean over seeds of the root mean square distance on three times the range of the data, over that of the "
                "targets, after training on 20 points of the sinusoid; both axes logarithmic."
            ),
            rows=rows,
            spec=spec,
            alt="The relative distance between networks and prediction as a function of their width.",
        )
    ]
