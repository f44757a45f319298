"""Select nodes of any graph by a trained policy or a classical method, and measure the selection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError, expect_choice
from normplace.lab.tasks.selection.checks import check_budget, check_count, check_nodes, check_seed, takes_graph
from normplace.lab.tasks.selection.dismantling import adaptive_order, dismantle
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.heuristics import ranking
from normplace.lab.tasks.selection.independent_set import take_greedily
from normplace.lab.tasks.selection.influence import spread, spread_curve
from normplace.lab.tasks.selection.methods import SEEDS, classical_order
from normplace.lab.tasks.selection.shipped import shipped_policy
from normplace.lab.tasks.selection_names import METHODS, TASKS, methods_of
from normplace.models.policy import Policy

POLICY = "policy"
ROUNDS = {"dismantling": 100, "influence": 1, "independent-set": 1}
"""Number of equal parts of the nodes after which a policy scores the rest of the graph again."""
POINTS = 200
"""Largest number of points of a curve."""
SIZES = 12
"""Number of seed sets of growing size on the curve of influence."""
SIMULATED_NODES = 40_000_000
"""Most nodes of all simulated cascades together, by default."""


@takes_graph
def select_nodes(
    graph: Graph,
    task: str,
    method: str = POLICY,
    *,
    budget: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    policy: Policy | None = None,
) -> NDArray[np.int64]:
    """An order of the nodes for a task: to remove, to use as seeds, or to take into an independent set.

    Args:
        graph: The graph.
        task: ``dismantling``, ``influence`` or ``independent-set``.
        method: ``policy``, or a classical method of the task.
        budget: Number of seeds that ``ris`` chooses; by default 50, or all nodes of a smaller graph.
        rounds: Number of equal parts of the nodes after which a policy scores the remaining graph again; 1 scores once.
            By default 100 for dismantling, which often ends after a fifth of the nodes, and 1 otherwise.
        seed: Random seed of ties and of randomized methods.
        policy: Another policy than the trained one of the package.

    Returns:
        All nodes; ``budget`` of them for ``ris``.

    Raises:
        UsageError: If an argument is unknown or does not fit the task.

    Examples:
        >>> star = Graph.from_edges([[0, 1], [0, 2], [0, 3]])
        >>> select_nodes(star, "dismantling", "corehd")[0]
        np.int64(0)
    """
    available = [POLICY, *methods_of(task)]
    expect_choice("method", method, (POLICY, *METHODS))
    if method not in available:
        raise UsageError(f"{method} is not a method for {task}: use {', '.join(available)}.")
    if method != POLICY:
        if rounds is not None or policy is not None:
            raise UsageError(f"rounds and policy are for the method 'policy', not for {method!r}: leave them out.")
        return classical_order(graph, task, method, budget=budget, seed=seed)
    rounds = ROUNDS[task] if rounds is None else check_count("rounds", rounds)
    if task == "independent-set" and rounds > 1:
        raise UsageError("an independent set is taken in one round: leave rounds out.")
    score = partial((policy or shipped_policy(task).policy).score, seed=check_seed(seed))
    if rounds == 1:
        return ranking(graph, score(graph))
    return adaptive_order(graph, score, max(1, math.ceil(graph.num_nodes / rounds)))


@dataclass(frozen=True, eq=False)
class SelectionResult:
    """The effect of an order.

    Attributes:
        selected: Nodes of the answer: those removed until the largest component is a hundredth of its size or one
            node, the seeds, or the independent set.
        numbers: Measures by name.
        curve: Points of the picture by column: the share of nodes removed or visited or the number of seeds, and the
            share of nodes in the largest component, reached, or in the set.
    """

    selected: NDArray[np.int64]
    numbers: Mapping[str, float]
    curve: Mapping[str, list[float]]


@takes_graph
def measure_order(
    graph: Graph,
    task: str,
    order: ArrayLike,
    *,
    budget: int | None = None,
    simulations: int | None = None,
    seed: int = 0,
) -> SelectionResult:
    """Measure an order: its robustness curve, the spread of its seeds, or the set of a greedy pass over it.

    Args:
        graph: The graph.
        task: ``dismantling``, ``influence`` or ``independent-set``.
        order: The nodes, all of them except for influence.
        budget: Number of seeds; by default 50, or as many as the order or the graph has.
        simulations: Number of simulated cascades; by default 1000, and fewer on graphs of more than 40,000 nodes, down
            to 100.
        seed: Random seed of the cascades.

    Raises:
        UsageError: If an argument is unknown, or the order lacks nodes.
    """
    expect_choice("task", task, TASKS)
    nodes = check_nodes(graph, order, "the order")
    if task == "influence":
        return _influence(graph, nodes, budget, _simulations(graph) if simulations is None else simulations, seed)
    if len(nodes) != graph.num_nodes:
        raise UsageError(f"{task} needs an order of all {graph.num_nodes} nodes, not {len(nodes)}.")
    return _dismantling(graph, nodes) if task == "dismantling" else _independent_set(graph, nodes)


def _dismantling(graph: Graph, order: NDArray[np.int64]) -> SelectionResult:
    result = dismantle(graph, order)
    counts = {share: result.removals_to(share) or 0 for share in (0.1, 0.01)}
    numbers = {"R": result.R, "removals_to_10%": counts[0.1], "removals_to_1%": counts[0.01]}
    # The curve is flat once the graph has fallen apart.
    places = np.linspace(0, min(graph.num_nodes, max(2 * counts[0.01], 1)), POINTS + 1).astype(int)
    places = np.unique(places)
    return SelectionResult(
        order[: counts[0.01]],
        numbers,
        {
            "removed": (places / graph.num_nodes).tolist(),
            "largest component": (result.curve[places] / graph.num_nodes).tolist(),
        },
    )


def _simulations(graph: Graph) -> int:
    """Fewer cascades where each takes long: they vary less there, relative to their size."""
    return min(1000, max(100, SIMULATED_NODES // max(graph.num_nodes, 1)))


def _influence(
    graph: Graph, order: NDArray[np.int64], budget: int | None, simulations: int, seed: int
) -> SelectionResult:
    most = min(SEEDS, len(order)) if budget is None else check_budget(graph, budget)
    if most > len(order):
        raise UsageError(f"the order has {len(order)} nodes, fewer than the {most} seeds: lower the budget.")
    sizes = np.unique(np.geomspace(1, most, SIZES).round().astype(int))
    reached = spread(graph, order[:most], simulations=simulations, seed=seed)
    low, high = reached.interval
    numbers = {"seeds": most, "reached": reached.mean, "low": low, "high": high}
    curve = spread_curve(graph, order[:most], simulations=simulations, seed=seed)
    shares = np.append(curve[sizes[:-1] - 1], reached.mean) / graph.num_nodes
    return SelectionResult(order[:most], numbers, {"seeds": sizes.astype(float).tolist(), "reached": shares.tolist()})


def _independent_set(graph: Graph, order: NDArray[np.int64]) -> SelectionResult:
    taken = take_greedily(graph.indptr, graph.indices, order)
    members = order[taken[order]]
    places = np.unique(np.linspace(0, graph.num_nodes, POINTS + 1).astype(int))
    grown = np.concatenate([[0], np.cumsum(taken[order])])[places] / graph.num_nodes
    numbers = {"size": len(members), "share": len(members) / graph.num_nodes}
    return SelectionResult(
        members, numbers, {"visited": (places / graph.num_nodes).tolist(), "in the set": grown.tolist()}
    )
