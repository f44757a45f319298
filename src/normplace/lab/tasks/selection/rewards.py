"""Rewards of node orders, from 0 to 1, for dismantling, influence and independent sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from normplace.errors import expect_ranges
from normplace.lab.tasks.selection.checks import check_orders
from normplace.lab.tasks.selection.compiled import compiled
from normplace.lab.tasks.selection.dismantling import component_sizes
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.independent_set import take_greedily
from normplace.lab.tasks.selection.influence import spreads


class Selection(Protocol):
    """A task that rewards orders of nodes."""

    def length(self, graph: Graph) -> int:
        """Number of leading nodes that the reward depends on."""
        ...

    def rewards(self, graph: Graph, orders: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
        """The reward of each order, from 0 to 1.

        Args:
            graph: The graph.
            orders: Permutations of its nodes, one per row.
            seed: Random seed of the reward; the same for all orders, so that they are comparable.

        Raises:
            UsageError: If a row is not a permutation.
        """
        ...


@dataclass(frozen=True)
class DismantlingReward:
    """1 - R of removing the nodes in that order; see :class:`Dismantling`."""

    def length(self, graph: Graph) -> int:
        """All nodes."""
        return graph.num_nodes

    def rewards(self, graph: Graph, orders: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
        """1 - R of each order; ``seed`` is not used."""
        return 1.0 - _robustness(graph.indptr, graph.indices, check_orders(graph, orders))


@dataclass(frozen=True)
class InfluenceReward:
    """The share of nodes that the first nodes of the order activate under the weighted cascade.

    Attributes:
        share: Share of the nodes that are seeds, rounded up.
        simulations: Number of simulations per order.
    """

    share: float = 0.1
    simulations: int = 32

    def __post_init__(self) -> None:
        expect_ranges(self, "share", above=0, most=1)

    def length(self, graph: Graph) -> int:
        """The number of seeds."""
        return math.ceil(self.share * graph.num_nodes)

    def rewards(self, graph: Graph, orders: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
        """The mean share of active nodes of each order."""
        seeds = check_orders(graph, orders)[:, : self.length(graph)]
        counts = spreads(graph, seeds, simulations=self.simulations, seed=seed, threads=1)
        return counts.mean(axis=1) / graph.num_nodes


@dataclass(frozen=True)
class IndependentSetReward:
    """The share of nodes in the independent set that a greedy pass in that order takes."""

    def length(self, graph: Graph) -> int:
        """All nodes."""
        return graph.num_nodes

    def rewards(self, graph: Graph, orders: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
        """The share of nodes each order takes; ``seed`` is not used."""
        return _taken(graph.indptr, graph.indices, check_orders(graph, orders))


REWARDS: Mapping[str, Selection] = {
    "dismantling": DismantlingReward(),
    "influence": InfluenceReward(),
    "independent-set": IndependentSetReward(),
}


@compiled
def _robustness(indptr, indices, orders):
    num_nodes = len(indptr) - 1
    robustness = np.empty(len(orders), np.float64)
    for row in range(len(orders)):
        total = 0
        for largest in component_sizes(indptr, indices, orders[row])[1:]:
            total += largest
        robustness[row] = total / num_nodes**2
    return robustness


@compiled
def _taken(indptr, indices, orders):
    share = np.empty(len(orders), np.float64)
    for row in range(len(orders)):
        share[row] = take_greedily(indptr, indices, orders[row]).sum() / (len(indptr) - 1)
    return share
