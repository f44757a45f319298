"""Betweenness: how many shortest paths pass through a node, exact or from a sample of sources."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection._compiled import compiled, in_chunks, positive
from normplace.lab.tasks.selection.dismantling import adaptive_order
from normplace.lab.tasks.selection.graph import Graph, check_generator, takes_graph
from normplace.lab.tasks.selection.heuristics import ranking

# Sums are rounded differently in a different order, so the parts are the same for any number of threads.
PARTS = 16


@takes_graph
def betweenness(
    graph: Graph,
    sources: int | None = None,
    generator: np.random.Generator | None = None,
    threads: int | None = None,
) -> NDArray[np.float64]:
    """For each node, the share of shortest paths that pass through it, summed over pairs of other nodes.

    Each pair is counted once, as in igraph. By the algorithm of Brandes (2001), in time proportional to nodes times
    edges; with ``sources`` only paths from so many random nodes are followed and the sum is scaled up, which has the
    right expectation (Brandes, Pich 2007).

    Args:
        graph: The graph.
        sources: How many nodes paths are followed from; None is all.
        generator: Chooses them.
        threads: At once; None is one per core. Results do not depend on it.

    Raises:
        UsageError: If ``sources`` is not from 1 to the number of nodes, or comes without a generator.
    """
    chosen = np.arange(graph.num_nodes)
    if sources is not None:
        if positive(sources, "sources") > graph.num_nodes:
            raise UsageError(f"sources is {sources}, and the graph has only {graph.num_nodes} nodes.")
        check_generator(generator)
        assert generator is not None
        chosen = np.sort(generator.choice(graph.num_nodes, sources, replace=False))

    def part(first: int, last: int) -> NDArray[np.float64]:
        return _paths(graph.indptr, graph.indices, chosen[first:last])

    total = np.sum(in_chunks(part, len(chosen), PARTS, threads), axis=0)
    return total * (graph.num_nodes / len(chosen) / 2)


@takes_graph
def betweenness_order(
    graph: Graph,
    adaptive: bool = False,
    step: int = 1,
    sources: int | None = None,
    generator: np.random.Generator | None = None,
    threads: int | None = None,
) -> NDArray[np.int64]:
    """All nodes by betweenness.

    Args:
        graph: The graph.
        adaptive: Recompute after every ``step`` removals; for exact betweenness this takes nodes² times edges, so a
            few thousand nodes.
        step: Removals between two computations.
        sources: Sources of paths in each computation, at most the nodes that are left; None is all.
        generator: Chooses them.
        threads: At once.

    Raises:
        UsageError: If an argument is not as described.
    """
    if not adaptive:
        return ranking(graph, betweenness(graph, sources, generator, threads))

    def score(left: Graph) -> NDArray[np.float64]:
        few = None if sources is None else min(sources, left.num_nodes)
        # The degree breaks ties among nodes no path passes through.
        return betweenness(left, few, generator, threads) + left.degrees / (2.0 * left.num_nodes)

    return adaptive_order(graph, score, step)


@compiled
def _paths(indptr, indices, sources):
    num_nodes = len(indptr) - 1
    total = np.zeros(num_nodes)
    distance = np.full(num_nodes, -1, np.int32)
    paths = np.zeros(num_nodes)
    share = np.zeros(num_nodes)
    line = np.empty(num_nodes, np.int32)
    for source in sources:
        line[0] = source
        distance[source] = 0
        paths[source] = 1.0
        head, tail = 0, 1
        while head < tail:
            node = line[head]
            head += 1
            for near in indices[indptr[node] : indptr[node + 1]]:
                if distance[near] < 0:
                    distance[near] = distance[node] + 1
                    line[tail] = near
                    tail += 1
                if distance[near] == distance[node] + 1:
                    paths[near] += paths[node]
        for place in range(tail - 1, 0, -1):
            node = line[place]
            through = (1.0 + share[node]) / paths[node]
            for near in indices[indptr[node] : indptr[node + 1]]:
                if distance[near] == distance[node] - 1:
                    share[near] += paths[near] * through
            total[node] += share[node]
        for place in range(tail):
            node = line[place]
            distance[node] = -1
            paths[node] = share[node] = 0.0
    return total
