"""Three tasks as one: a reward for an order of a graph's nodes, from 0 to 1, the larger the better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection._compiled import compiled
from normplace.lab.tasks.selection.dismantling import component_sizes
from normplace.lab.tasks.selection.graph import Graph, check_orders
from normplace.lab.tasks.selection.independent_set import take_greedily
from normplace.lab.tasks.selection.influence import spreads


class Selection(Protocol):
    """What an order of nodes is good for."""

    def length(self, graph: Graph) -> int:
        """How many of the first nodes of an order its reward depends on."""
        ...

    def rewards(self, graph: Graph, orders: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
        """The reward of each order, from 0 to 1.

        Args:
            graph: The graph.
            orders: Permutations of its nodes, one a row.
            seed: Of what is random in the reward; the same for all orders, so that they compare.

        Raises:
            UsageError: If a row is not a permutation.
        """
        ...


@dataclass(frozen=True)
class DismantlingReward:
    """1 - R of removing the nodes in that order, see :class:`Dismantling`."""

    def length(self, graph: Graph) -> int:
        """All of them."""
        return graph.num_nodes

    def rewards(self, graph: Graph, orders: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
        """1 - R of each order; ``seed`` is not used."""
        return 1.0 - _robustness(graph.indptr, graph.indices, check_orders(graph, orders))


@dataclass(frozen=True)
class InfluenceReward:
    """The share of nodes that the first nodes of the order activate under the weighted cascade.

    Attributes:
        share: Seeds as a share of all nodes, rounded up.
        simulations: Of every order.
    """

    share: float = 0.1
    simulations: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"the share of seeds is above 0 and at most 1, not {self.share!r}.")

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
    """The share of nodes in the independent set taken greedily in that order."""

    def length(self, graph: Graph) -> int:
        """All of them."""
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
    found = np.empty(len(orders), np.float64)
    for row in range(len(orders)):
        total = 0
        for largest in component_sizes(indptr, indices, orders[row])[1:]:
            total += largest
        found[row] = total / num_nodes**2
    return found


@compiled
def _taken(indptr, indices, orders):
    found = np.empty(len(orders), np.float64)
    for row in range(len(orders)):
        found[row] = take_greedily(indptr, indices, orders[row]).sum() / (len(indptr) - 1)
    return found
