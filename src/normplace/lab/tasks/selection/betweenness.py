"""Betweenness centrality, exact or estimated from a sample of sources."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection.checks import check_count, check_generator, takes_graph
from normplace.lab.tasks.selection.compiled import compiled, map_chunks
from normplace.lab.tasks.selection.dismantling import adaptive_order
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.heuristics import ranking
from normplace.models.centrality import TOO_MANY_PATHS

# Floating-point sums depend on their order, so the number of chunks does not depend on the threads.
CHUNKS = 16


@takes_graph
def betweenness(
    graph: Graph, sources: int | None = None, generator: np.random.Generator | None = None, threads: int | None = None
) -> NDArray[np.float64]:
    """The share of shortest paths through each node, summed over pairs of other nodes.

    Each pair is counted once, as in igraph. The algorithm of Brandes (2001) takes time proportional to nodes times
    edges. With ``sources``, only paths from that many random nodes are used, and the sum is scaled; the estimate is
    unbiased (Brandes, Pich 2007).

    Args:
        graph: The graph.
        sources: Number of source nodes; None means all.
        generator: Draws the sources.
        threads: Number of threads; None means one per core. Results do not depend on it.

    Raises:
        UsageError: If ``sources`` is not from 1 to the number of nodes, there is no generator, or the number of
            shortest paths overflows.
    """
    chosen = np.arange(graph.num_nodes)
    if sources is not None:
        if check_count("sources", sources) > graph.num_nodes:
            raise UsageError(f"sources is {sources}, but the graph has only {graph.num_nodes} nodes.")
        check_generator(generator)
        assert generator is not None
        chosen = np.sort(generator.choice(graph.num_nodes, sources, replace=False))

    def part(first: int, last: int) -> NDArray[np.float64]:
        return _paths(graph.indptr, graph.indices, chosen[first:last])

    total = np.sum(map_chunks(part, len(chosen), CHUNKS, threads), axis=0)
    if not np.isfinite(total).all():
        raise UsageError(TOO_MANY_PATHS)
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
    """All nodes by decreasing betweenness.

    Args:
        graph: The graph.
        adaptive: Recompute after every ``step`` removals. Exact betweenness then takes time proportional to nodes²
            times edges, which allows a few thousand nodes.
        step: Number of removals between two computations.
        sources: Number of sources in each computation, at most the remaining nodes; None means all.
        generator: Draws the sources.
        threads: Number of threads.

    Raises:
        UsageError: If an argument is invalid.
    """
    if not adaptive:
        return ranking(graph, betweenness(graph, sources, generator, threads))

    def score(remaining: Graph) -> NDArray[np.float64]:
        few = None if sources is None else min(sources, remaining.num_nodes)
        # The degree breaks ties among nodes without paths through them.
        return betweenness(remaining, few, generator, threads) + remaining.degrees / (2.0 * remaining.num_nodes)

    return adaptive_order(graph, score, step)


@compiled
def _paths(indptr, indices, sources):
    num_nodes = len(indptr) - 1
    total = np.zeros(num_nodes)
    distance = np.full(num_nodes, -1, np.int32)
    paths = np.zeros(num_nodes)
    share = np.zeros(num_nodes)
    queue = np.empty(num_nodes, np.int32)
    for source in sources:
        queue[0] = source
        distance[source] = 0
        paths[source] = 1.0
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            for near in indices[indptr[node] : indptr[node + 1]]:
                if distance[near] < 0:
                    distance[near] = distance[node] + 1
                    queue[tail] = near
                    tail += 1
                if distance[near] == distance[node] + 1:
                    paths[near] += paths[node]
        for place in range(tail - 1, 0, -1):
            node = queue[place]
            through = (1.0 + share[node]) / paths[node]
            for near in indices[indptr[node] : indptr[node + 1]]:
                if distance[near] == distance[node] - 1:
                    share[near] += paths[near] * through
            total[node] += share[node] if paths[node] < np.inf else np.nan
        for place in range(tail):
            node = queue[place]
            distance[node] = -1
            paths[node] = share[node] = 0.0
    return total
