"""Train on proteins of small surface area and predict large ones (section 4.2, Table 1 and Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.extrapolation.networks import NAMES, VARIANTS
from normplace.lab.studies.extrapolation.tabular import (
    bin_centers,
    binned_mean,
    histogram,
    network_predictions,
    xgboost_predictions,
    xgboost_unavailable,
)
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.regression.protein import load_protein, split_by_area
from normplace.lab.trials.study import Outcome, Part

LEARNERS = (*VARIANTS, "xgboost")
TITLES = {**NAMES, "xgboost": "XGBoost"}
PREDICTION_EDGES = [float(edge) for edge in range(-10, 62, 2)]
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 500, "epochs": 10, "rounds": 5},
    "laptop": {"rows": 6000, "epochs": 500},
    "full": {},
}
"""Sizes by scale: those of the paper at ``full``, our choice otherwise."""
AREA_EDGES = [float(edge) for edge in range(2_000, 42_000, 2_000)]


@dataclass(frozen=True)
class ProteinTrial:
    """One model of the protein data.

    Args:
        learner: Which hidden layers of the network have a LayerNorm, or ``xgboost``.
        seed: Random seed of the split, the initial weights and the batch order.
        rows: Number of training rows; 0 means all 40,132.
        epochs: Epochs of the network.
        batch_size: Rows per step of the network; 0 means all.
        learning_rate: Adam's learning rate.
        width: Width of both hidden layers.
        rounds: Number of trees of XGBoost.
        table: Path of the data file; if empty, the file is searched for, then downloaded.
        device: Device of the network: ``auto``, ``cpu`` or ``cuda``.
    """

    learner: str
    seed: int
    rows: int = 0
    epochs: int = 2500
    batch_size: int = 0
    learning_rate: float = 1e-3
    width: int = 128
    rounds: int = 100
    table: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        expect_choice("learner", self.learner, LEARNERS)
        expect_ranges(self, "rows", "batch_size", least=0)
        expect_ranges(self, "epochs", "width", "rounds", least=1)


def plan(scale: str) -> Iterator[ProteinTrial]:
    """Every learner with the paper's ten seeds; two seeds at ``smoke``."""
    for seed in range(2 if scale == "smoke" else 10):
        for learner in LEARNERS:
            yield ProteinTrial(learner, seed, **SIZES[scale])


def why_unavailable(trial: ProteinTrial) -> str | None:
    """Why the trial cannot run: the data or XGBoost is missing; None if it can."""
    return unavailable_reason(load_protein, trial.table) or (
        xgboost_unavailable() if trial.learner == "xgboost" else None
    )


def run(trial: ProteinTrial) -> Outcome:
    """Train, then predict small and large proteins."""
    generator = torch.Generator().manual_seed(trial.seed)
    split = split_by_area(load_protein(trial.table), generator, trial.rows)
    if trial.learner == "xgboost":
        predictions = xgboost_predictions(split, trial.seed, trial.rounds)
    else:
        predictions = network_predictions(
            split,
            trial.learner,
            generator,
            width=trial.width,
            epochs=trial.epochs,
            learning_rate=trial.learning_rate,
            batch_size=trial.batch_size,
            device=trial.device,
        )
    area = torch.cat([split.inside.x[:, 0], split.outside.x[:, 0]])
    predicted = torch.cat([predictions.inside, predictions.outside])[:, 0]
    target = torch.cat([split.inside.y, split.outside.y])[:, 0]
    return Outcome(
        metrics={**predictions.scores(split), "largest_target": float(split.train.y.max())},
        series={
            "rmsd": bin_centers(PREDICTION_EDGES),
            "share": histogram(predictions.outside, PREDICTION_EDGES),
            "true_share": histogram(split.outside.y, PREDICTION_EDGES),
            "area": bin_centers(AREA_EDGES),
            "error": binned_mean((predicted - target).abs(), area, AREA_EDGES),
            "prediction": binned_mean(predicted, area, AREA_EDGES),
            "target": binned_mean(target, area, AREA_EDGES),
        },
    )


PART = Part(
    name="protein",
    config=ProteinTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"protein, {TITLES[trial.learner]}, seed {trial.seed}",
    unavailable_reason=why_unavailable,
)
