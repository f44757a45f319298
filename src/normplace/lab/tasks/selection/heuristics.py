"""Classical node orders: random, degree, k-core, PageRank, CoreHD and collective influence.

A score is larger for a more important node. :func:`ranking` turns scores into an order, with ties to the lowest id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection._compiled import compiled, positive, replay, tournament
from normplace.lab.tasks.selection.graph import Graph, check_generator, check_scores, takes_graph


@takes_graph
def ranking(graph: Graph, scores: ArrayLike) -> NDArray[np.int64]:
    """All nodes from the largest score to the smallest, ties to the lowest id.

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
    """All nodes by degree.

    Args:
        graph: The graph.
        adaptive: By the degree among the nodes not yet removed, rather than in the whole graph.
    """
    if not adaptive:
        return ranking(graph, graph.degrees)
    removed = np.zeros(graph.num_nodes, np.bool_)
    order = np.empty(graph.num_nodes, np.int64)
    _by_degree(graph.indptr, graph.indices, removed, order, 0)
    return order


@takes_graph
def core_numbers(graph: Graph) -> NDArray[np.int64]:
    """For each node the largest k such that it is in a part of the graph where all degrees are at least k.

    Computed as by Batagelj and Zaveršnik (2003), in time proportional to the edges.
    """
    return _cores(graph.indptr, graph.indices)


@takes_graph
def core_order(graph: Graph) -> NDArray[np.int64]:
    """All nodes by core number, and by degree within a core."""
    return np.lexsort((-graph.degrees, -core_numbers(graph)))


@takes_graph
def corehd_order(graph: Graph) -> NDArray[np.int64]:
    """CoreHD: the highest degree within the 2-core first, until no cycle is left; then trees are broken.

    The forest that is left is broken as in Braunstein et al. (2016): from the largest tree, the node that leaves the
    smallest largest part. Reinsertion, the method's last step, is :func:`normplace.lab.tasks.selection.reinsert`.
    Zdeborová, Zhang, Zhou (2016), "Fast and simple decycling and dismantling of networks".
    """
    return _corehd(graph.indptr, graph.indices)


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
    """All nodes by collective influence, recomputed after each removal; when it is 0 everywhere, by degree.

    Raises:
        UsageError: If ``radius`` is not positive.
    """
    return _by_influence(graph.indptr, graph.indices, _radius(graph, radius))


def _radius(graph: Graph, radius: int) -> int:
    """A checked radius; one beyond the number of nodes reaches none, as that number does."""
    return min(positive(radius, "radius"), max(graph.num_nodes, 1))


@takes_graph
def pagerank(graph: Graph, damping: float = 0.85, tolerance: float = 1e-10) -> NDArray[np.float64]:
    """The share of time a random walk that restarts with probability 1 - ``damping`` spends at each node.

    From a node without neighbours the walk restarts.

    Args:
        graph: The graph.
        damping: The chance to walk on.
        tolerance: Stop when a step changes the shares by less, in total.

    Raises:
        UsageError: If ``damping`` is not from 0 to below 1.
    """
    if not 0 <= damping < 1:
        raise UsageError(f"damping is from 0 to below 1, not {damping!r}.")
    if not tolerance > 0:
        raise UsageError(f"tolerance is positive, not {tolerance!r}.")
    return _pagerank(graph.indptr, graph.indices, damping, max(tolerance, 1e-14))


@compiled
def _by_degree(indptr, indices, removed, order, done):
    """Fill ``order`` from ``done`` on with the nodes not yet removed, the highest degree among them first."""
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
        # Degrees only fall, so a key may be too large but never too small: correct it when it wins.
        if key[node] == degree[node]:
            order[done] = node
            done += 1
            degree[node] = -1
            for near in indices[indptr[node] : indptr[node + 1]]:
                if degree[near] > 0:
                    degree[near] -= 1
        key[node] = degree[node]
        replay(tree, key, node)


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
                # Swap it with the first of its degree, then let that degree start one later.
                first = start[degree[near]]
                other = order[first]
                order[first], order[place[near]] = near, other
                place[other], place[near] = place[near], first
                start[degree[near]] = first + 1
                degree[near] -= 1
    return degree


@compiled
def _corehd(indptr, indices):
    num_nodes = len(indptr) - 1
    degree = indptr[1:] - indptr[:-1]
    removed = np.zeros(num_nodes, np.bool_)
    order = np.empty(num_nodes, np.int64)
    stack = np.empty(num_nodes, np.int64)
    top = 0
    for node in range(num_nodes):
        if degree[node] < 2:
            stack[top] = node
            top += 1
            degree[node] = -1  # out of the core
    _peel(indptr, indices, degree, stack, top)
    key = degree.copy()
    tree = tournament(key)
    done = 0
    while key[tree[1]] >= 0:
        node = tree[1]
        if key[node] == degree[node]:
            order[done] = node
            done += 1
            removed[node] = True
            degree[node] = -1
            stack[0] = node
            _peel(indptr, indices, degree, stack, 1)
        key[node] = degree[node]
        replay(tree, key, node)
    _break_trees(indptr, indices, removed, order, done)
    return order


@compiled
def _peel(indptr, indices, degree, stack, top):
    """Take the nodes on the stack out of the core, and all that then have fewer than two neighbours in it."""
    while top > 0:
        top -= 1
        node = stack[top]
        for near in indices[indptr[node] : indptr[node + 1]]:
            if degree[near] >= 0:
                degree[near] -= 1
                if degree[near] < 2:
                    degree[near] = -1
                    stack[top] = near
                    top += 1


@compiled
def _break_trees(indptr, indices, removed, order, done):
    """Fill ``order`` with the nodes of a forest: always from a largest tree, its centre."""
    num_nodes = len(indptr) - 1
    parent = np.full(num_nodes, -1, np.int64)
    size = np.zeros(num_nodes, np.int64)
    line = np.empty(num_nodes, np.int64)
    first = np.full(num_nodes + 1, -1, np.int64)  # a node of some tree of each size, and the next such tree
    following = np.full(num_nodes, -1, np.int64)
    for root in range(num_nodes - 1, -1, -1):
        if not removed[root] and size[root] == 0:
            count = _measure(indptr, indices, removed, root, parent, size, line)
            following[root] = first[count]
            first[count] = root
    for count in range(num_nodes, 0, -1):
        while first[count] >= 0:
            root = first[count]
            first[count] = following[root]
            _measure(indptr, indices, removed, root, parent, size, line)
            centre, inner = root, True
            while inner:  # go down as long as one branch has more than half
                inner = False
                for near in indices[indptr[centre] : indptr[centre + 1]]:
                    if not removed[near] and parent[near] == centre and 2 * size[near] > count:
                        centre, inner = near, True
                        break
            removed[centre] = True
            order[done] = centre
            done += 1
            for near in indices[indptr[centre] : indptr[centre + 1]]:
                if not removed[near]:
                    part = size[near] if parent[near] == centre else count - size[centre]
                    following[near] = first[part]
                    first[part] = near


@compiled
def _measure(indptr, indices, removed, root, parent, size, line):
    """Parents and subtree sizes of the tree of ``root``; its number of nodes."""
    parent[root] = -1
    line[0] = root
    tail, head = 1, 0
    while head < tail:
        node = line[head]
        head += 1
        size[node] = 1
        for near in indices[indptr[node] : indptr[node + 1]]:
            if not removed[near] and near != parent[node]:
                parent[near] = node
                line[tail] = near
                tail += 1
    for place in range(tail - 1, 0, -1):
        size[parent[line[place]]] += size[line[place]]
    return tail


@compiled
def _ball(indptr, indices, removed, centre, radius, seen, mark, line):
    """Nodes up to a distance from ``centre``, nearest first, in ``line``; where the last shell starts and ends."""
    line[0] = centre
    seen[centre] = mark
    start, end = 0, 1
    for _ in range(radius):
        tail = end
        for place in range(start, end):
            node = line[place]
            for near in indices[indptr[node] : indptr[node + 1]]:
                if not removed[near] and seen[near] != mark:
                    seen[near] = mark
                    line[tail] = near
                    tail += 1
        start, end = end, tail
    return start, end


@compiled
def _influence(indptr, indices, removed, degree, radius, node, seen, mark, line):
    if degree[node] < 2:
        return 0
    start, end = _ball(indptr, indices, removed, node, radius, seen, mark, line)
    total = 0
    for place in range(start, end):
        total += degree[line[place]] - 1
    return (degree[node] - 1) * total


@compiled
def _influences(indptr, indices, removed, degree, radius):
    num_nodes = len(indptr) - 1
    seen = np.zeros(num_nodes, np.int64)
    line = np.empty(num_nodes, np.int64)
    found = np.empty(num_nodes, np.int64)
    for node in range(num_nodes):
        found[node] = _influence(indptr, indices, removed, degree, radius, node, seen, node + 1, line)
    return found


@compiled
def _by_influence(indptr, indices, radius):
    num_nodes = len(indptr) - 1
    degree = indptr[1:] - indptr[:-1]
    removed = np.zeros(num_nodes, np.bool_)
    order = np.empty(num_nodes, np.int64)
    seen = np.zeros(num_nodes, np.int64)
    line, inner = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
    key = _influences(indptr, indices, removed, degree, radius)
    tree = tournament(key)
    mark, done = num_nodes, 0
    while key[tree[1]] > 0:
        node = tree[1]
        mark += 1
        # Before it is gone, since afterwards nobody would be near it: a neighbour's degree counts one step further.
        _, end = _ball(indptr, indices, removed, node, radius + 1, seen, mark, line)
        order[done] = node
        done += 1
        removed[node] = True
        key[node] = -1
        replay(tree, key, node)
        for near in indices[indptr[node] : indptr[node + 1]]:
            degree[near] -= 1
        for place in range(1, end):
            mark += 1
            other = line[place]
            value = _influence(indptr, indices, removed, degree, radius, other, seen, mark, inner)
            if value != key[other]:
                key[other] = value
                replay(tree, key, other)
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
