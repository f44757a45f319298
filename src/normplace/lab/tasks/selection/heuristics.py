"""Classical node orders: random, degree, k-core, PageRank and collective influence.

A larger score means a more important node. :func:`ranking` turns scores into an order; ties go to the lowest id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError, expect_range
from normplace.lab.tasks.selection.checks import check_count, check_generator, check_scores, takes_graph
from normplace.lab.tasks.selection.compiled import compiled, tournament, update_tournament
from normplace.lab.tasks.selection.graph import Graph


@takes_graph
def ranking(graph: Graph, scores: ArrayLike) -> NDArray[np.int64]:
    """All nodes by decreasing score; ties by lowest id.

    Raises:
        UsageError: If there is not one score per node.
    """
    return np.argsort(-check_scores(graph, scores), kind="stable")


@takes_graph
def random_order(graph: Graph, generator: np.random.Generator) -> NDArray[np.int64]:
    """All nodes in random order.

    Raises:
        UsageError: If ``generator`` is not a numpy.random.Generator.
    """
    check_generator(generator)
    return generator.permutation(graph.num_nodes)


@takes_graph
def degree_order(graph: Graph, adaptive: bool = False) -> NDArray[np.int64]:
    """All nodes by decreasing degree.

    Args:
        graph: The graph.
        adaptive: Use the degree among the remaining nodes instead of the whole graph.
    """
    if not adaptive:
        return ranking(graph, graph.degrees)
    removed = np.zeros(graph.num_nodes, np.bool_)
    order = np.empty(graph.num_nodes, np.int64)
    _by_degree(graph.indptr, graph.indices, removed, order, 0)
    return order


@takes_graph
def core_numbers(graph: Graph) -> NDArray[np.int64]:
    """For each node the largest k such that the node is in the k-core.

    The algorithm of Batagelj and Zaveršnik (2003) takes time proportional to the number of edges.
    """
    return _cores(graph.indptr, graph.indices)


@takes_graph
def core_order(graph: Graph) -> NDArray[np.int64]:
    """All nodes by decreasing core number, then by decreasing degree."""
    return np.lexsort((-graph.degrees, -core_numbers(graph)))


@takes_graph
def collective_influence(graph: Graph, radius: int = 2) -> NDArray[np.int64]:
    """(degree - 1) times the sum of (degree - 1) over the nodes at distance ``radius`` (Morone, Makse 2015).

    Raises:
        UsageError: If ``radius`` is not positive.
    """
    removed = np.zeros(graph.num_nodes, np.bool_)
    return _influences(graph.indptr, graph.indices, removed, graph.degrees.copy(), _radius(graph, radius))


@takes_graph
def collective_influence_order(graph: Graph, radius: int = 2) -> NDArray[np.int64]:
    """All nodes by collective influence, recomputed after each removal; by degree once it is 0 everywhere.

    Raises:
        UsageError: If ``radius`` is not positive.
    """
    return _by_influence(graph.indptr, graph.indices, _radius(graph, radius))


def _radius(graph: Graph, radius: int) -> int:
    """The checked radius; a radius beyond the number of nodes is equivalent to that number."""
    return min(check_count("radius", radius), max(graph.num_nodes, 1))


@takes_graph
def pagerank(graph: Graph, damping: float = 0.85, tolerance: float = 1e-10) -> NDArray[np.float64]:
    """PageRank: the stationary distribution of a random walk that restarts with probability 1 - ``damping``.

    The walk also restarts at a node without neighbors.

    Args:
        graph: The graph.
        damping: Probability to continue the walk.
        tolerance: Stop when the total change of a step is smaller.

    Raises:
        UsageError: If ``damping`` is not from 0 to below 1.
    """
    expect_range("damping", damping, least=0, below=1)
    if not tolerance > 0:
        raise UsageError(f"tolerance must be positive, got {tolerance!r}.")
    return _pagerank(graph.indptr, graph.indices, damping, max(tolerance, 1e-14))


@compiled
def _by_degree(indptr, indices, removed, order, done):
    """Fill ``order`` from index ``done`` with the remaining nodes, highest remaining degree first."""
    num_nodes = len(indptr) - 1
    degree = np.zeros(num_nodes, np.int64)
    for node in range(num_nodes):
        if removed[node]:
            degree[node] = -1
            continue
        for near in indices[indptr[node] : indptr[node + 1]]:
            degree[node] += not removed[near]
    key = degree.copy()
    tree = tournament(key)
    while done < num_nodes:
        node = tree[1]
        # Degrees only decrease, so a key is never too small: correct it when it wins.
        if key[node] == degree[node]:
            order[done] = node
            done += 1
            degree[node] = -1
            for near in indices[indptr[node] : indptr[node + 1]]:
                if degree[near] > 0:
                    degree[near] -= 1
        key[node] = degree[node]
        update_tournament(tree, key, node)


@compiled
def _cores(indptr, indices):
    num_nodes = len(indptr) - 1
    degree = indptr[1:] - indptr[:-1]
    start = np.zeros(degree.max() + 2, np.int64)
    for node in range(num_nodes):
        start[degree[node] + 1] += 1
    start = np.cumsum(start)
    order = np.empty(num_nodes, np.int64)
    place = np.empty(num_nodes, np.int64)
    filled = start.copy()
    for node in range(num_nodes):
        place[node] = filled[degree[node]]
        order[place[node]] = node
        filled[degree[node]] += 1
    for position in range(num_nodes):
        node = order[position]
        for near in indices[indptr[node] : indptr[node + 1]]:
            if degree[near] > degree[node]:
                # Swap it with the first node of its degree, and start that degree one later.
                first = start[degree[near]]
                other = order[first]
                order[first], order[place[near]] = near, other
                place[other], place[near] = place[near], first
                start[degree[near]] = first + 1
                degree[near] -= 1
    return degree


@compiled
def _ball(indptr, indices, removed, center, radius, seen, mark, queue):
    """Write the nodes within a distance of ``center`` to ``queue``, nearest first; return the last shell's range."""
    queue[0] = center
    seen[center] = mark
    start, end = 0, 1
    for _ in range(radius):
        tail = end
        for place in range(start, end):
            node = queue[place]
            for near in indices[indptr[node] : indptr[node + 1]]:
                if not removed[near] and seen[near] != mark:
                    seen[near] = mark
                    queue[tail] = near
                    tail += 1
        start, end = end, tail
    return start, end


@compiled
def _influence(indptr, indices, removed, degree, radius, node, seen, mark, queue):
    if degree[node] < 2:
        return 0
    start, end = _ball(indptr, indices, removed, node, radius, seen, mark, queue)
    total = 0
    for place in range(start, end):
        total += degree[queue[place]] - 1
    return (degree[node] - 1) * total


@compiled
def _influences(indptr, indices, removed, degree, radius):
    num_nodes = len(indptr) - 1
    seen = np.zeros(num_nodes, np.int64)
    queue = np.empty(num_nodes, np.int64)
    influence = np.empty(num_nodes, np.int64)
    for node in range(num_nodes):
        influence[node] = _influence(indptr, indices, removed, degree, radius, node, seen, node + 1, queue)
    return influence


@compiled
def _by_influence(indptr, indices, radius):
    num_nodes = len(indptr) - 1
    degree = indptr[1:] - indptr[:-1]
    removed = np.zeros(num_nodes, np.bool_)
    order = np.empty(num_nodes, np.int64)
    seen = np.zeros(num_nodes, np.int64)
    queue, inner = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
    key = _influences(indptr, indices, removed, degree, radius)
    tree = tournament(key)
    mark, done = num_nodes, 0
    while key[tree[1]] > 0:
        node = tree[1]
        mark += 1
        # Search before the removal. The radius is one larger, because a removal changes the neighbors' degrees.
        _, end = _ball(indptr, indices, removed, node, radius + 1, seen, mark, queue)
        order[done] = node
        done += 1
        removed[node] = True
        key[node] = -1
        update_tournament(tree, key, node)
        for near in indices[indptr[node] : indptr[node + 1]]:
            degree[near] -= 1
        for place in range(1, end):
            mark += 1
            other = queue[place]
            value = _influence(indptr, indices, removed, degree, radius, other, seen, mark, inner)
            if value != key[other]:
                key[other] = value
                update_tournament(tree, key, other)
    _by_degree(indptr, indices, removed, order, done)
    return order


@compiled
def _pagerank(indptr, indices, damping, tolerance):
    num_nodes = len(indptr) - 1
    share = np.full(num_nodes, 1.0 / num_nodes)
    sent = np.empty(num_nodes)
    change = 1.0
    while change > tolerance:
        stuck = 0.0
        for node in range(num_nodes):
            degree = indptr[node + 1] - indptr[node]
            if degree == 0:
                stuck += share[node]
                sent[node] = 0.0
            else:
                sent[node] = share[node] / degree
        change = 0.0
        for node in range(num_nodes):
            total = 0.0
            for near in indices[indptr[node] : indptr[node + 1]]:
                total += sent[near]
            fresh = (1 - damping + damping * stuck) / num_nodes + damping * total
            change += abs(fresh - share[node])
            share[node] = fresh
    return share
