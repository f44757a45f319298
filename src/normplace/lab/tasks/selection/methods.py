"""Classical methods by name: an order of the nodes for each task.

An order starts with the nodes to remove first (dismantling), the seeds (influence) or the nodes to take first
(independent sets, where a greedy pass over the order gives the set).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError, expect_choice
from normplace.lab.tasks.selection.betweenness import betweenness_order
from normplace.lab.tasks.selection.checks import check_budget, check_seed, takes_graph
from normplace.lab.tasks.selection.corehd import corehd_order
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.heuristics import (
    collective_influence_order,
    core_order,
    degree_order,
    pagerank,
    random_order,
    ranking,
)
from normplace.lab.tasks.selection.independent_set import min_degree_set
from normplace.lab.tasks.selection.kamis import kamis_set
from normplace.lab.tasks.selection.reverse import ris_greedy
from normplace.lab.tasks.selection_names import METHODS, methods_of

Order = NDArray[np.int64]
SEEDS = 50
"""Number of seeds that ``ris`` chooses, unless the caller sets it."""
BETWEENNESS_NODES = 3000
"""Number of nodes up to which betweenness is recomputed after every removal; above, it is estimated once."""
BETWEENNESS_SOURCES = 500
RADIUS_2_NODES = 10_000
"""Number of nodes up to which collective influence has radius 2; above, it has radius 1."""


def _betweenness(graph: Graph, seed: int, budget: int) -> Order:
    if graph.num_nodes <= BETWEENNESS_NODES:
        return betweenness_order(graph, adaptive=True)
    return betweenness_order(graph, sources=BETWEENNESS_SOURCES, generator=np.random.default_rng(seed))


def _kamis_seconds(graph: Graph) -> float:
    """Time limit of KaMIS: a second per thousand nodes, from 1 to 10."""
    return min(max(graph.num_nodes / 1000, 1.0), 10.0)


def _set_first(graph: Graph, nodes: Order) -> Order:
    """The nodes of a set, then the others."""
    outside = np.ones(graph.num_nodes, bool)
    outside[nodes] = False
    return np.concatenate([nodes, np.flatnonzero(outside)])


ORDERS: dict[str, Callable[[Graph, int, int], Order]] = {
    "random": lambda graph, seed, budget: random_order(graph, np.random.default_rng(seed)),
    "degree": lambda graph, seed, budget: degree_order(graph),
    "adaptive-degree": lambda graph, seed, budget: degree_order(graph, adaptive=True),
    "k-core": lambda graph, seed, budget: core_order(graph),
    "corehd": lambda graph, seed, budget: corehd_order(graph),
    "collective-influence": lambda graph, seed, budget: collective_influence_order(
        graph, 2 if graph.num_nodes <= RADIUS_2_NODES else 1
    ),
    "pagerank": lambda graph, seed, budget: ranking(graph, pagerank(graph)),
    "betweenness": _betweenness,
    "ris": lambda graph, seed, budget: ris_greedy(graph, budget, seed=seed).seeds,
    "min-degree": lambda graph, seed, budget: _set_first(graph, min_degree_set(graph)),
    "kamis": lambda graph, seed, budget: _set_first(graph, kamis_set(graph, _kamis_seconds(graph), seed=seed)),
}
"""From a graph, a random seed and a number of seeds to an order; the methods are those of ``METHODS``."""


@takes_graph
def classical_order(graph: Graph, task: str, method: str, *, budget: int | None = None, seed: int = 0) -> Order:
    """The order of a classical method for a task.

    Args:
        graph: The graph.
        task: ``dismantling``, ``influence`` or ``independent-set``.
        method: A key of ``METHODS`` that is for this task.
        budget: Number of seeds that ``ris`` chooses, which is the length of its order; by default 50, or all nodes of
            a smaller graph.
        seed: Random seed of ``random``, ``betweenness``, ``ris`` and ``kamis``.

    Raises:
        UsageError: If the task or method is unknown, or the method is not for this task.

    Examples:
        >>> star = Graph.from_edges([[0, 1], [0, 2], [0, 3]])
        >>> classical_order(star, "dismantling", "degree").tolist()
        [0, 1, 2, 3]
        >>> classical_order(star, "independent-set", "degree").tolist()
        [3, 2, 1, 0]
    """
    available = methods_of(task)
    expect_choice("method", method, METHODS)
    if method not in available:
        raise UsageError(f"{method} is not a method for {task}: use {', '.join(available)}.")
    budget = check_budget(graph, min(SEEDS, graph.num_nodes) if budget is None else budget)
    order = ORDERS[method](graph, check_seed(seed), budget)
    return order[::-1].copy() if METHODS[method].reverse and task == "independent-set" else order
