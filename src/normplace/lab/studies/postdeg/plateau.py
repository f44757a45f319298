"""Recommenders trained to their plateau, with a learning rate per network.

In the part ``recommend`` all networks have one budget, and those with a scale after the norm were still improving. Here
every network is trained with each learning rate of a grid until the recall of held-out training pairs stops improving,
and its rate is the one with the best of them. The test pairs choose nothing. Rule and grid are our choices.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.postdeg import recommend
from normplace.lab.studies.postdeg.recommend import CELLS, TOP, RecommendTrial, embeddings, length_slope, relative
from normplace.lab.tasks.recommend import Interactions, rank_all
from normplace.lab.train.recommend import fit_bpr
from normplace.lab.trials.study import Outcome, Part

NORMALIZED = (
    "LayerNorm",
    "LayerNorm, d^-1/2 after",
    "LayerNorm, d^1/2 after",
    "RMSNorm",
    "RMSNorm, d^-1/2 after",
)
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Learning rates of Adam on Gowalla; the best must be inside."""
MOVIELENS_RATES = {
    "LayerNorm": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
    "LayerNorm, d^-1/2 after": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "LayerNorm, d^1/2 after": (0.01, 0.03, 0.1, 0.3, 1.0),
    "RMSNorm": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
    "RMSNorm, d^-1/2 after": (0.0001, 0.0003, 0.001, 0.003, 0.01),
}
"""Learning rates on MovieLens at ``full``, from pilots with a seed outside the plan.

0.0001 without a scale was added once the best of the other rates was the smallest.
"""
DATASETS = {"movielens": "MovieLens", "gowalla": "Gowalla"}
LEAST_GAIN = 0.002
"""Relative improvement of the held-out recall that counts."""


@dataclass(frozen=True)
class PlateauTrial:
    """One network with one learning rate.

    Args:
        dataset: ``gowalla``, ``movielens`` or ``own``, as in :class:`RecommendTrial`.
        cell: Name of the network.
        learning_rate: Adam's learning rate, constant.
        seed: Random seed of the held-out pairs, the initial embeddings and the sampled triples.
        every: Epochs between two evaluations.
        patience: Evaluations without an improvement after which training ends.
        limit: Largest number of epochs.
        dim: Width of the embeddings.
        batch_size: Triples per step.
        cuda_graph: Whether to replay training steps as a CUDA graph.
        table: Path of the data file; if empty, the file is searched for, then downloaded.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.
    """

    dataset: str
    cell: str
    learning_rate: float
    seed: int
    every: int = 10
    patience: int = 5
    limit: int = 1000
    dim: int = 64
    batch_size: int = 32_768
    cuda_graph: bool = True
    table: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        expect_choice("network", self.cell, NORMALIZED)
        expect_ranges(self, "every", "patience", "limit", "batch_size", least=1)

    def recommender(self) -> RecommendTrial:
        """The trial of the part ``recommend`` with the same network and data."""
        return RecommendTrial(
            self.dataset,
            seed=self.seed,
            dim=self.dim,
            cuda_graph=self.cuda_graph,
            table=self.table,
            device=self.device,
            **CELLS[self.cell],
        )


def plan(scale: str) -> Iterator[PlateauTrial]:
    """MovieLens, then Gowalla at ``full``; two networks on MovieLens, fewer rates at ``laptop``; five seeds each."""
    size: dict[str, Any] = {"dataset": "movielens", "batch_size": 4096, "cuda_graph": False}
    if scale == "full":
        longer = {"every": 5, "patience": 10, "limit": 4000}
        for seed in range(5):
            for cell, rates in MOVIELENS_RATES.items():
                for rate in rates:
                    yield PlateauTrial(cell=cell, learning_rate=rate, seed=seed, **longer, **size)
        for seed in range(5):
            for cell in NORMALIZED:
                for rate in RATES:
                    yield PlateauTrial("gowalla", cell, rate, seed)
        return
    rates, seeds, size = (0.02, 0.05, 0.12, 0.3), 5, {**size, "dim": 32, "every": 4, "limit": 120}
    if scale == "smoke":
        rates, seeds, size = rates[:1], 2, {**size, "dim": 8, "every": 1, "limit": 1}
    for seed in range(seeds):
        for cell in NORMALIZED[:2]:
            for rate in rates:
                yield PlateauTrial(cell=cell, learning_rate=rate, seed=seed, **size)


def hold_out(interactions: Interactions, seed: int) -> Interactions:
    """Training pairs without one pair of every user who has at least three; the held-out pairs are the test."""
    users = interactions.train[0].cpu()
    counts = torch.bincount(users, minlength=interactions.num_users)
    draws = torch.rand(len(users), generator=torch.Generator().manual_seed(seed))
    # Sorted by user, then by draw: the last pair of every user is a random one.
    order = torch.argsort(users.double() + draws.double() * 0.999)
    last = counts.cumsum(0) - 1
    held_out = torch.zeros(len(users), dtype=torch.bool)
    held_out[order[last[counts >= 3]]] = True
    held_out = held_out.to(interactions.train.device)
    train, test = interactions.train[:, ~held_out], interactions.train[:, held_out]
    return Interactions(interactions.num_users, interactions.num_items, train, test)


def run(trial: PlateauTrial) -> Outcome:
    """Train until the held-out recall stops improving; the network of its best evaluation is scored on the test pairs.

    ``ended`` is 1 if training ended by the rule, and 0 if it reached the largest number of epochs.
    """
    device = pick_device(trial.device)
    whole = recommend.load(trial.recommender()).to(device)
    inner = hold_out(whole, trial.seed)
    model, represent = recommend.build(trial.recommender(), inner, torch.Generator().manual_seed(trial.seed))
    evaluations: list[tuple[int, float]] = []
    best: dict[str, Any] = {"recall": -1.0, "epoch": 0, "state": {}}

    def evaluate(epoch: int) -> bool:
        if epoch % trial.every and epoch != trial.limit:
            return False
        recall = rank_all(*embeddings(represent, inner), inner, TOP).recall
        evaluations.append((epoch, recall))
        if recall > best["recall"] * (1 + LEAST_GAIN):
            best.update(recall=recall, epoch=epoch, state=copy.deepcopy(model.state_dict()))
        return epoch - best["epoch"] >= trial.patience * trial.every

    fit_bpr(
        model,
        represent,
        inner,
        epochs=trial.limit,
        batch_size=trial.batch_size,
        learning_rate=trial.learning_rate,
        generator=torch.Generator(device).manual_seed(trial.seed),
        cuda_graph=trial.cuda_graph,
        watch=evaluate,
    )
    if best["state"]:  # empty if no evaluation had a finite recall
        model.load_state_dict(best["state"])
    model.eval()
    users, items = embeddings(represent, inner)
    # Held-out pairs are not candidates: the user has already chosen them.
    score = rank_all(users, items, whole, TOP)
    last = evaluations[-1][0]
    return Outcome(
        metrics={
            "recall": score.recall,
            "ndcg": score.ndcg,
            "held_out": best["recall"] if best["state"] else math.nan,
            "best_epoch": float(best["epoch"]),
            "ended": float(last - best["epoch"] >= trial.patience * trial.every),
            "length_slope": length_slope(items, relative("degree", inner)[inner.num_users :]),
        },
        series={
            "epoch": [float(epoch) for epoch, _ in evaluations],
            "held_out": [recall for _, recall in evaluations],
        },
    )


PART = Part(
    name="plateau",
    config=PlateauTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.dataset}, {trial.cell}, learning rate {trial.learning_rate:g}, seed {trial.seed}",
    unavailable_reason=lambda trial: recommend.why_unavailable(trial.recommender()),
)
