"""Recommendation: does a degree scale beside the norm of a graph network change the ranking of items?

The paper names other tasks; this one is ours, chosen because an item's degree is its popularity, which a ranking can
use, and because LightGCN (arXiv 2002.02126) gives a published row to check the protocol against.
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
from normplace.errors import UsageError, expect_at_least, unknown
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
# How often the test items are looked at, for the figure of the training; the last look is after the last epoch.
LOOKS = 4

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
"""The variants by name; d is the degree."""


@dataclass(frozen=True)
class RecommendTrial:
    """One recommender.

    Args:
        dataset: ``gowalla`` in LightGCN's split, ``movielens`` split by the seed, or ``own``: the file ``table``.
        model: ``lightgcn``, or ``normalized``: residual blocks around the same propagation.
        seed: Of the split where it is random, the initial table and the triples.
        norm: Of the normalized network: ``layer``, ``rms`` or any other.
        placement: Where its norms stand.
        where: Side of the norm on which the scale stands, or ``none``.
        power: What the scalar is raised to.
        source: The scalar: ``degree`` or another of :func:`normplace.models.topology`.
        depth: How often rows are propagated.
        dim: Width of the table.
        epochs: How many; the last one's model is scored.
        batch_size: Triples in a step.
        learning_rate: Adam's.
        l2: Weight of the penalty on the table's rows in a batch.
        schedule: Of the learning rate, ``constant`` or ``linear``.
        cuda_graph: Replay recorded steps, on a GPU.
        table: The data file; by default one is looked for, then downloaded. For ``own`` an ``.npz`` file.
        device: Where to train: ``auto``, ``cpu`` or ``cuda``.
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
            if getattr(self, name) not in options:
                raise unknown(name, getattr(self, name), options)
        expect_at_least(1, self, "depth", "dim", "epochs", "batch_size")
        if self.dataset == "own" and not self.table:
            raise UsageError("dataset 'own' is read from a file: set table to its path.")
        if self.model == "lightgcn" and self.where != "none":
            raise UsageError("LightGCN has no norm for a scale to stand beside: set where=none.")


MOVIELENS: Fields = {"dataset": "movielens", "batch_size": 4096, "learning_rate": 0.05, "schedule": "linear"}
GOWALLA: Fields = {"dataset": "gowalla", "schedule": "linear", "cuda_graph": True}


def _size(scale: str, cell: Fields) -> Fields:
    """How long a cell is trained and in what steps; all ours."""
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
    """Gowalla at ``full``, MovieLens below; at ``full`` all networks with a norm share one budget."""
    for seed in range(2 if scale == "smoke" else 5):
        for cell in CELLS.values():
            if scale == "full" or cell["depth"] > 1:
                yield RecommendTrial(**_size(scale, cell), **cell, seed=seed)


def load(trial: RecommendTrial) -> Interactions:
    """The data of a trial."""
    if trial.dataset == "own":
        return read_array_split(Path(trial.table))
    return load_gowalla(trial.table) if trial.dataset == "gowalla" else load_movielens(trial.seed, trial.table)


def ready(trial: RecommendTrial) -> str | None:
    """Why the trial cannot run here, if so: the data are missing, or a GPU."""
    if trial.cuda_graph and not torch.cuda.is_available():
        return "it replays CUDA graphs, and no CUDA device answers here: set cuda_graph=False."
    if trial.dataset == "own":
        return None if Path(trial.table).is_file() else f"there is no file {trial.table!r}: check the path."
    return unavailable_reason(load_gowalla if trial.dataset == "gowalla" else load_ratings, trial.table)


def relative(source: str, interactions: Interactions) -> Tensor:
    """The scalar of every node over its geometric mean, so that a power of it leaves the scores' mean size alone."""
    values = topology(source, interactions.edges, interactions.num_nodes)
    return (values / values.log().mean().exp()).float()


def build(
    trial: RecommendTrial, interactions: Interactions, generator: torch.Generator
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The trial's network, and what gives its rows of all nodes, on the device of the interactions."""
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
    """Train for the given epochs, then rank all items for every user."""
    device = pick_device(trial.device)
    interactions = load(trial).to(device)
    model, represent = build(trial, interactions, torch.Generator().manual_seed(trial.seed))
    draws = torch.Generator(device).manual_seed(trial.seed)
    looks = {math.ceil(trial.epochs * n / LOOKS) for n in range(1, LOOKS + 1)}
    seen: dict[int, RankingScore] = {}

    def look(epoch: int) -> None:
        if epoch in looks:
            users, items = _rows(represent, interactions)
            seen[epoch] = rank_all(users, items, interactions, TOP)

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
        watch=look,
    )
    final = seen[trial.epochs]
    slope = length_slope(_rows(represent, interactions)[1], relative("degree", interactions)[interactions.num_users :])
    return Outcome(
        metrics={"recall": final.recall, "ndcg": final.ndcg, "loss": loss, "length_slope": slope},
        series={
            "epoch": [float(epoch) for epoch in seen],
            "recall": [score.recall for score in seen.values()],
            "ndcg": [score.ndcg for score in seen.values()],
        },
    )


@torch.no_grad()
def _rows(represent: Callable[[], Tensor], interactions: Interactions) -> tuple[Tensor, Tensor]:
    users, items = represent().split([interactions.num_users, interactions.num_items])
    return users, items


def length_slope(rows: Tensor, degree: Tensor) -> float:
    """The exponent p of the least-squares fit ``length of a row ~ degree^p``."""
    x, y = degree.double().log(), torch.linalg.vector_norm(rows.double(), dim=1).log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


PART = Part(
    name="recommend",
    config=RecommendTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"recommend, {title(trial)}, seed {trial.seed}",
    ready=ready,
)


def title(trial: RecommendTrial) -> str:
    """The variant's name, or what the trial says of itself where it is none of the planned ones."""
    for name, cell in CELLS.items():
        if all(getattr(trial, key) == value for key, value in cell.items()):
            return name
    return f"{trial.model}, {trial.norm} {trial.placement}, {trial.source}^{trial.power:g} {trial.where}"
