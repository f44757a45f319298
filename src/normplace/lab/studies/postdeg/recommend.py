"""Recommendation: does a degree scale before or after the norm of a graph network change the ranking of items?

The paper does not test this task. We chose it because an item's degree is its popularity, which matters for ranking,
and because LightGCN (arXiv 2002.02126) has published scores to check the protocol against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.device import pick_device
from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.recommend import (
    Interactions,
    RankingScore,
    load_gowalla,
    load_movielens,
    load_ratings,
    rank_all,
    read_array_split,
)
from normplace.lab.train.recommend import SCHEDULES, fit_bpr
from normplace.lab.trials.study import Outcome, Part
from normplace.models import topology
from normplace.models.recommend import Adjacency, LightGCN, NormalizedGCN
from normplace.placement.scale import Scale

DATASETS = ("gowalla", "movielens", "own")
MODELS = ("lightgcn", "normalized")
SIDES = ("none", "before", "after")
TOP = 20
EVALUATIONS = 4
"""Evaluations during training, at equal distances; the last is after the last epoch."""

Fields = Mapping[str, Any]
LIGHTGCN: Fields = {"model": "lightgcn", "norm": "none", "placement": "none"}
LAYER: Fields = {"model": "normalized", "norm": "layer", "placement": "post"}
RMS: Fields = {"model": "normalized", "norm": "rms", "placement": "post"}
NONE: Fields = {"where": "none", "power": 0.0}
BEFORE: Fields = {"where": "before", "power": -0.5}
AFTER: Fields = {"where": "after", "power": -0.5}
RISING: Fields = {"where": "after", "power": 0.5}

CELLS: Mapping[str, Fields] = {
    "LightGCN, 1 layer": {**LIGHTGCN, **NONE, "depth": 1},
    "LightGCN, 3 layers": {**LIGHTGCN, **NONE, "depth": 3},
    "LayerNorm": {**LAYER, **NONE, "depth": 3},
    "LayerNorm, d^-1/2 before": {**LAYER, **BEFORE, "depth": 3},
    "LayerNorm, d^-1/2 after": {**LAYER, **AFTER, "depth": 3},
    "LayerNorm, d^1/2 after": {**LAYER, **RISING, "depth": 3},
    "RMSNorm": {**RMS, **NONE, "depth": 3},
    "RMSNorm, d^-1/2 before": {**RMS, **BEFORE, "depth": 3},
    "RMSNorm, d^-1/2 after": {**RMS, **AFTER, "depth": 3},
}
"""Configuration of each variant by name; d is the degree."""


@dataclass(frozen=True)
class RecommendTrial:
    """One recommender.

    Args:
        dataset: ``gowalla`` in LightGCN's split, ``movielens`` split by the seed, or ``own``: the file ``table``.
        model: ``lightgcn``, or ``normalized``: residual blocks around the same propagation.
        seed: Random seed of the split (where it is random), the initial embeddings and the sampled triples.
        norm: Norm of the normalized network: ``layer``, ``rms`` or any other.
        placement: Placement of its norms.
        where: Side of the norm that the scale is on, or ``none``.
        power: Exponent of the scalar.
        source: The scalar: ``degree`` or another of :func:`normplace.models.topology`.
        depth: Number of propagation layers.
        dim: Width of the embeddings.
        epochs: Number of epochs; the final model is scored.
        batch_size: Triples per step.
        learning_rate: Adam's learning rate.
        l2: Weight of the L2 penalty on the embeddings in a batch.
        schedule: Learning rate schedule, ``constant`` or ``linear``.
        cuda_graph: Whether to replay training steps as a CUDA graph.
        table: Path of the data file; if empty, the file is searched for, then downloaded. An ``.npz`` file for ``own``.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.
    """

    dataset: str
    model: str
    seed: int
    norm: str = "layer"
    placement: str = "post"
    where: str = "none"
    power: float = 0.0
    source: str = "degree"
    depth: int = 3
    dim: int = 64
    epochs: int = 1000
    batch_size: int = 2048
    learning_rate: float = 1e-3
    l2: float = 1e-4
    schedule: str = "constant"
    cuda_graph: bool = False
    table: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        choices = {"dataset": DATASETS, "model": MODELS, "where": SIDES, "schedule": SCHEDULES}
        for name, options in choices.items():
            expect_choice(name, getattr(self, name), options)
        expect_ranges(self, "depth", "dim", "epochs", "batch_size", least=1)
        if self.dataset == "own" and not self.table:
            raise UsageError("dataset 'own' is read from a file: set table to its path.")
        if self.model == "lightgcn" and self.where != "none":
            raise UsageError("LightGCN has no norm, so it cannot have a scale: set where=none.")


MOVIELENS: Fields = {"dataset": "movielens", "batch_size": 4096, "learning_rate": 0.05, "schedule": "linear"}
GOWALLA: Fields = {"dataset": "gowalla", "schedule": "linear", "cuda_graph": True}


def _size(scale: str, cell: Fields) -> Fields:
    """Data set, epochs, batch size and learning rate of a cell; all are our choices."""
    if scale == "smoke":
        return {**MOVIELENS, "epochs": 1, "dim": 8}
    if scale == "laptop":
        return {**MOVIELENS, "epochs": 24, "dim": 32}
    if cell["model"] == "normalized":
        return {**GOWALLA, "epochs": 100, "batch_size": 32_768, "learning_rate": 0.03}
    if cell["depth"] == 1:
        return {**GOWALLA, "epochs": 300, "batch_size": 32_768, "learning_rate": 0.003}
    return {**GOWALLA, "epochs": 1000, "batch_size": 131_072, "learning_rate": 0.05}


def plan(scale: str) -> Iterator[RecommendTrial]:
    """Gowalla at ``full``, MovieLens below; all networks with a norm have the same training budget."""
    for seed in range(2 if scale == "smoke" else 5):
        for cell in CELLS.values():
            if scale == "full" or cell["depth"] > 1:
                yield RecommendTrial(**_size(scale, cell), **cell, seed=seed)


def load(trial: RecommendTrial) -> Interactions:
    """Load the data of a trial."""
    if trial.dataset == "own":
        return read_array_split(Path(trial.table))
    return load_gowalla(trial.table) if trial.dataset == "gowalla" else load_movielens(trial.seed, trial.table)


def why_unavailable(trial: RecommendTrial) -> str | None:
    """Why the trial cannot run: the data or a GPU is missing; None if it can."""
    if trial.cuda_graph and not torch.cuda.is_available():
        return "it replays CUDA graphs, but no CUDA device is available: set cuda_graph=False."
    if trial.dataset == "own":
        return None if Path(trial.table).is_file() else f"there is no file {trial.table!r}: check the path."
    return unavailable_reason(load_gowalla if trial.dataset == "gowalla" else load_ratings, trial.table)


def relative(source: str, interactions: Interactions) -> Tensor:
    """The scalar of every node divided by its geometric mean, so that its powers keep the scale of the scores."""
    values = topology(source, interactions.edges, interactions.num_nodes)
    return (values / values.log().mean().exp()).float()


def build(
    trial: RecommendTrial, interactions: Interactions, generator: torch.Generator
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The trial's network, and a function that returns the embeddings of all nodes."""
    counts, device = (interactions.num_users, interactions.num_items), interactions.train.device
    adjacency = Adjacency(interactions.edges, interactions.num_nodes)
    if trial.model == "lightgcn":
        model = LightGCN(*counts, trial.dim, trial.depth, generator=generator).to(device)
        return model, partial(model, adjacency)
    scale = factor = None
    if trial.where != "none":
        scale = Scale(trial.source, trial.power, trial.where)
        factor = scale.factor(relative(trial.source, interactions))
    model = NormalizedGCN(*counts, trial.dim, trial.depth, trial.placement, trial.norm, scale, generator=generator)
    return model.to(device), partial(model, adjacency, factor=factor)


def run(trial: RecommendTrial) -> Outcome:
    """Train, then rank all items for every user."""
    device = pick_device(trial.device)
    interactions = load(trial).to(device)
    model, represent = build(trial, interactions, torch.Generator().manual_seed(trial.seed))
    draws = torch.Generator(device).manual_seed(trial.seed)
    evaluated = {math.ceil(trial.epochs * n / EVALUATIONS) for n in range(1, EVALUATIONS + 1)}
    scores: dict[int, RankingScore] = {}

    def evaluate(epoch: int) -> None:
        if epoch in evaluated:
            users, items = embeddings(represent, interactions)
            scores[epoch] = rank_all(users, items, interactions, TOP)

    loss = fit_bpr(
        model,
        represent,
        interactions,
        epochs=trial.epochs,
        batch_size=trial.batch_size,
        learning_rate=trial.learning_rate,
        generator=draws,
        l2=trial.l2,
        schedule=trial.schedule,
        cuda_graph=trial.cuda_graph,
        watch=evaluate,
    )
    final = scores[trial.epochs]
    slope = length_slope(
        embeddings(represent, interactions)[1], relative("degree", interactions)[interactions.num_users :]
    )
    return Outcome(
        metrics={"recall": final.recall, "ndcg": final.ndcg, "loss": loss, "length_slope": slope},
        series={
            "epoch": [float(epoch) for epoch in scores],
            "recall": [score.recall for score in scores.values()],
            "ndcg": [score.ndcg for score in scores.values()],
        },
    )


@torch.no_grad()
def embeddings(represent: Callable[[], Tensor], interactions: Interactions) -> tuple[Tensor, Tensor]:
    """The embeddings of users and of items, without gradients."""
    users, items = represent().split([interactions.num_users, interactions.num_items])
    return users, items


def length_slope(embeddings: Tensor, degree: Tensor) -> float:
    """The exponent p of the least-squares fit ``length of an embedding ~ degree^p``."""
    x, y = degree.double().log(), torch.linalg.vector_norm(embeddings.double(), dim=1).log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


PART = Part(
    name="recommend",
    config=RecommendTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"recommend, {title(trial)}, seed {trial.seed}",
    unavailable_reason=why_unavailable,
)


def title(trial: RecommendTrial) -> str:
    """The name of the variant, or a description if the trial is not a planned variant."""
    for name, cell in CELLS.items():
        if all(getattr(trial, key) == value for key, value in cell.items()):
            return name
    return f"{trial.model}, {trial.norm} {trial.placement}, {trial.source}^{trial.power:g} {trial.where}"
