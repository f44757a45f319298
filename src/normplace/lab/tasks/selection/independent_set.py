"""Independent sets: large sets of nodes without edges between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection.checks import check_nodes, check_scores, takes_graph
from normplace.lab.tasks.selection.compiled import compiled, tournament, update_tournament
from normplace.lab.tasks.selection.graph import Graph


@takes_graph
def greedy_set(graph: Graph, scores: ArrayLike) -> NDArray[np.int64]:
    """Take nodes by decreasing score unless a neighbor was taken; ties by lowest id.

    Returns:
        Ascending ids of a maximal independent set.

    Raises:
        UsageError: If there is not one score per node.

    Examples:
        >>> path = Graph.from_edges([[0, 1], [1, 2]])
        >>> greedy_set(path, [1.0, 3.0, 2.0]).tolist()
        [1]
    """
    order = np.argsort(-check_scores(graph, scores), kind="stable")
    return np.flatnonzero(take_greedily(graph.indptr, graph.indices, order))


@takes_graph
def min_degree_set(graph: Graph) -> NDArray[np.int64]:
    """Repeatedly take a node of minimum degree, and remove it and its neighbors; ties by lowest id.

    Returns:
        Ascending ids.
    """
    return np.flatnonzero(_min_degree(graph.indptr, graph.indices))


@takes_graph
def improve(graph: Graph, nodes: ArrayLike) -> NDArray[np.int64]:
    """Enlarge a set until no exchange of one node for two others is possible.

    This is the local search of Andrade, Resende and Werneck (2012) without its random restarts; free nodes are added
    first.

    Raises:
        UsageError: If ``nodes`` is not an independent set.

    Examples:
        >>> star = Graph.from_edges([[0, 1], [0, 2], [0, 3]])
        >>> improve(star, [0]).tolist()
        [1, 2, 3]
    """
    return np.flatnonzero(_improve(graph.indptr, graph.indices, check_independent(graph, nodes)))


@takes_graph
def check_independent(graph: Graph, nodes: ArrayLike) -> NDArray[np.int64]:
    """The nodes as an array, if they are independent.

    Raises:
        UsageError: If two of them are neighbors, or one is not a node of the graph.
    """
    ids = check_nodes(graph, nodes, "the set")
    if (edge := _conflict(graph, ids)) is not None:
        raise UsageError(f"the set is not independent: nodes {edge[0]} and {edge[1]} are neighbors.")
    return ids


@takes_graph
def is_independent(graph: Graph, nodes: ArrayLike) -> bool:
    """Whether no two of the nodes are neighbors.

    Raises:
        UsageError: If one is not a node of the graph.
    """
    return _conflict(graph, check_nodes(graph, nodes, "the set")) is None


def _conflict(graph: Graph, nodes: NDArray[np.int64]) -> tuple[int, int] | None:
    inside = np.zeros(graph.num_nodes, bool)
    inside[nodes] = True
    edges = graph.edges()
    both = edges[inside[edges].all(axis=1)]
    return (int(both[0, 0]), int(both[0, 1])) if len(both) else None


@takes_graph
def exact_set(graph: Graph, seconds: float = 60.0) -> NDArray[np.int64]:
    """A maximum independent set of a small graph, by integer programming (HiGHS through scipy).

    Raises:
        UsageError: If optimality is not proven within the time limit.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    if not graph.num_edges:
        return np.arange(graph.num_nodes)
    edges = graph.edges()
    rows = np.repeat(np.arange(len(edges)), 2)
    at_most_one = coo_array((np.ones(2 * len(edges)), (rows, edges.ravel())), shape=(len(edges), graph.num_nodes))
    solution = milp(
        -np.ones(graph.num_nodes),
        integrality=np.ones(graph.num_nodes),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(at_most_one.tocsr(), ub=1.0),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if solution.status != 0:
        raise UsageError(f"no optimum was proven within {seconds:g} s: allow more seconds, or use a smaller graph.")
    return check_independent(graph, np.flatnonzero(solution.x > 0.5))


@compiled
def take_greedily(indptr, indices, order):
    """Which nodes a greedy pass over ``order`` takes: each one without a taken neighbor."""
    taken = np.zeros(len(indptr) - 1, np.bool_)
    blocked = np.zeros(len(indptr) - 1, np.bool_)
    for node in order:
        if not blocked[node]:
            taken[node] = True
            blocked[indices[indptr[node] : indptr[node + 1]]] = True
    return taken


@compiled
def _min_degree(indptr, indices):
    num_nodes = len(indptr) - 1
    gone = -(num_nodes + 1)
    key = -(indptr[1:] - indptr[:-1])
    tree = tournament(key)
    taken = np.zeros(num_nodes, np.bool_)
    while key[tree[1]] > gone:
        node = tree[1]
        taken[node] = True
        key[node] = gone
        update_tournament(tree, key, node)
        for near in indices[indptr[node] : indptr[node + 1]]:
            if key[near] == gone:
                continue
            key[near] = gone
            update_tournament(tree, key, near)
            for far in indices[indptr[near] : indptr[near + 1]]:
                if key[far] > gone:
                    key[far] += 1
                    update_tournament(tree, key, far)
    return taken


@compiled
def _enter(indptr, indices, taken, tightness, node):
    taken[node] = True
    for near in indices[indptr[node] : indptr[node + 1]]:
        tightness[near] += 1


@compiled
def _improve(indptr, indices, nodes):
    num_nodes = len(indptr) - 1
    taken = np.zeros(num_nodes, np.bool_)
    tightness = np.zeros(num_nodes, np.int32)  # number of neighbors in the set
    for node in nodes:
        _enter(indptr, indices, taken, tightness, node)
    for node in range(num_nodes):
        if not taken[node] and tightness[node] == 0:
            _enter(indptr, indices, taken, tightness, node)
    candidates = np.flatnonzero(taken).astype(np.int32)
    near_mark = np.full(num_nodes, -1, np.int32)
    while len(candidates):
        next_candidates = np.zeros(num_nodes, np.bool_)
        for leaving in candidates:
            if not taken[leaving]:
                continue
            neighbors = indices[indptr[leaving] : indptr[leaving + 1]]
            one_tight = neighbors[tightness[neighbors] == 1]
            entering = -1
            for first in one_tight:
                for near in indices[indptr[first] : indptr[first + 1]]:
                    near_mark[near] = first
                for second in one_tight:
                    if second != first and near_mark[second] != first:
                        entering = first
                        break
                if entering >= 0:
                    break
            if entering < 0:
                continue
            taken[leaving] = False
            for near in neighbors:
                tightness[near] -= 1
            _enter(indptr, indices, taken, tightness, entering)
            next_candidates[entering] = True
            for near in one_tight:
                if not taken[near] and tightness[near] == 0:
                    _enter(indptr, indices, taken, tightness, near)
                    next_candidates[near] = True
            # Only neighbors of the node that left can have become one-tight, each for its one neighbor in the set.
            for near in neighbors:
                if tightness[near] == 1:
                    for other in indices[indptr[near] : indptr[near + 1]]:
                        if taken[other]:
                            next_candidates[other] = True
        candidates = np.flatnonzero(next_candidates & taken).astype(np.int32)
    return taken
