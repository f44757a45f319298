"""The slots of a topology scale, what selection policies need and are rewarded with, and how scores become an order."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from normplace.errors import UsageError
from normplace.models.convolutions import convolution
from normplace.models.policy import NeighborLists, Policy

if TYPE_CHECKING:
    from normplace.lab.tasks.selection import Graph
    from normplace.lab.tasks.selection.rewards import Selection

SLOTS = {"none": "no scale", "before": "before the norm", "after": "after the norm", "head": "at the head only"}
FLOAT32, FLOAT64 = "float32", "float64"
SCORINGS = {
    FLOAT32: "scores in float32, ties by node id",
    FLOAT64: "scores in float64, ties at random",
}
"""How scores become an order. Trials were recorded with ``float32`` first; where all scores are equal, their order then
follows rounding errors, which depend on degree. Such cells were recomputed with ``float64``."""


def missing_package(aggregation: str) -> str | None:
    """Why a policy with this convolution cannot run: a package is missing; None if it can."""
    try:
        convolution(aggregation)
    except UsageError as error:
        return str(error)
    return missing_selection()


def missing_selection() -> str | None:
    """Why no task of node selection can run: a package is missing; None if they can."""
    try:
        import normplace.lab.tasks.selection  # noqa: F401
    except UsageError as error:
        return str(error)
    return None


def missing_solver(method: str) -> str | None:
    """Why a method cannot run: its own package is missing; None if it can."""
    if method == "kamis" and importlib.util.find_spec("chszlablib") is None:
        return "KaMIS needs chszlablib: pip install 'normplace[kamis]'."
    return None


def reward_of(task: str, simulations: int) -> Selection:
    """The reward of a task, with this number of simulated cascades for influence."""
    from normplace.lab.tasks.selection.rewards import REWARDS, InfluenceReward

    return InfluenceReward(simulations=simulations) if task == "influence" else REWARDS[task]


def training_graphs(count: int, seed: int) -> list[Graph]:
    """The random graphs that the policies of a seed are trained on, of 30 to 80 nodes."""
    from normplace.lab.tasks.selection import mixed_graphs

    return mixed_graphs(count, 30, 80, np.random.default_rng([seed, 0]))


def test_graphs(count: int, seed: int) -> list[Graph]:
    """The random graphs that a seed is tested on, of 100 to 200 nodes."""
    from normplace.lab.tasks.selection import mixed_graphs

    return mixed_graphs(count, 100, 200, np.random.default_rng([seed, 1]))


def mean_score(task: str, graphs: Sequence[Graph], orders: Iterable[NDArray[np.int64]]) -> float:
    """The mean score of an order of the nodes of each graph."""
    reward = reward_of(task, simulations=400)
    values = [
        float(reward.rewards(graph, order[None], seed=number)[0])
        for number, (graph, order) in enumerate(zip(graphs, orders, strict=True))
    ]
    return task_score(task, float(np.mean(values)))


def task_score(task: str, reward: float) -> float:
    """The score that a task is reported with: R for dismantling, otherwise the reward."""
    return 1 - reward if task == "dismantling" else reward


def scores(policy: Policy, graph: NeighborLists, seed: int, scoring: str) -> NDArray[np.float64]:
    """One score per node, by a key of :data:`SCORINGS`."""
    if scoring == FLOAT64:
        return policy.score(graph, seed)
    with torch.no_grad():
        return policy([policy.prepare(graph)], torch.Generator().manual_seed(seed)).double().cpu().numpy()
