"""The gradient of one MLP sublayer's last matrix, with and without an output norm (Proposition 3.1).

``h = relu(N(x) W1)`` and ``a = h W2``. The sublayer adds ``a`` (pre) or ``N(a)`` (peri) to the stream. The loss
gradient in the stream has norm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import expect_choice
from normplace.lab.trials.study import Outcome, Part
from normplace.norms import build_norm

SCALES = tuple(2.0**power for power in range(-6, 7))
FACTOR = 4.0
"""Constant of the proposition."""
NORMS = ("rms", "layer")
SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class BoundTrial:
    """Random tokens through one random sublayer with scaled hidden features.

    Args:
        norm: ``rms`` or ``layer``.
        seed: Random seed of tokens, weights and loss gradients.
        dim: Width of the stream.
        hidden: Hidden width.
        rows: Number of tokens, each with a separate gradient.
        gain: The gain γ of the norms.
    """

    norm: str
    seed: int
    dim: int = 64
    hidden: int = 256
    rows: int = 64
    gain: float = 1.0

    def __post_init__(self) -> None:
        expect_choice("norm", self.norm, NORMS)


def plan(scale: str) -> Iterator[BoundTrial]:
    """Both norms with a few seeds, at every scale."""
    for norm in NORMS:
        for seed in range(2 if scale == "smoke" else SEEDS):
            yield BoundTrial(norm=norm, seed=seed)


def run(trial: BoundTrial) -> Outcome:
    """Measure the gradients at every scale of the hidden features, and compare them with the bound."""
    sizes: dict[str, list[float]] = {"pre": [], "peri": [], "bound": []}
    worst = 0.0
    for scale in SCALES:
        gradient = {placement: gradients(trial, scale, placement) for placement in ("pre", "peri")}
        limit = bound(trial, scale)
        worst = max(worst, float((gradient["peri"] / limit[:, None, None]).max()))
        for placement, magnitudes in gradient.items():
            sizes[placement].append(float(magnitudes.amax((1, 2)).mean()))
        sizes["bound"].append(float(limit.mean()))
    logs = [math.log(scale) for scale in SCALES]
    return Outcome(
        metrics={
            "worst": worst,
            "slope_pre": _slope(logs, sizes["pre"]),
            "slope_peri": _slope(logs, sizes["peri"]),
        },
        series={"scale": SCALES, **sizes},
    )


def sublayer(trial: BoundTrial, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden features times ``scale``, the last matrix, and the loss gradient in the stream, in float64."""
    generator = torch.Generator().manual_seed(trial.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, direction = normal(trial.rows, trial.dim), normal(trial.rows, trial.dim)
    first = normal(trial.dim, trial.hidden) / math.sqrt(trial.dim)
    last = normal(trial.hidden, trial.dim) / math.sqrt(trial.hidden)
    hidden = scale * (_norm(trial)(x) @ first).relu()
    return hidden.detach(), last, direction / direction.norm(dim=-1, keepdim=True)


def _norm(trial: BoundTrial) -> torch.nn.Module:
    norm = build_norm(trial.norm, trial.dim, eps=0.0).double()
    with torch.no_grad():
        norm.get_parameter("weight").fill_(trial.gain)
    return norm


def gradients(trial: BoundTrial, scale: float, placement: str) -> Tensor:
    """Magnitude of the gradient of each weight of the last matrix, per token: (rows, hidden, dim)."""
    hidden, last, direction = sublayer(trial, scale)
    matrices = last.expand(trial.rows, -1, -1).clone().requires_grad_()
    out = torch.bmm(hidden[:, None], matrices)[:, 0]
    added = _norm(trial)(out) if placement == "peri" else out
    (gradient,) = torch.autograd.grad((added * direction).sum(), matrices)
    return gradient.abs()


def bound(trial: BoundTrial, scale: float) -> Tensor:
    """``4 γ sqrt(D) |h| / |a|`` of each token."""
    hidden, last, _ = sublayer(trial, scale)
    return FACTOR * trial.gain * math.sqrt(trial.dim) * hidden.norm(dim=-1) / (hidden @ last).norm(dim=-1)


def _slope(x: list[float], y: list[float]) -> float:
    """Exponent of the scale in a gradient, by least squares on logarithms."""
    logs = [math.log(value) for value in y]
    middle, height = sum(x) / len(x), sum(logs) / len(logs)
    return sum((a - middle) * (b - height) for a, b in zip(x, logs, strict=True)) / sum((a - middle) ** 2 for a in x)


PART = Part(
    name="bound",
    config=BoundTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"bound, {trial.norm}, seed {trial.seed}",
    in_demo=lambda trial: True,
)
