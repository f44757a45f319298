"""Independent sets: nodes of which no two are neighbours, as many as possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection._compiled import compiled, replay, tournament
from normplace.lab.tasks.selection.graph import Graph, check_nodes, check_scores, takes_graph


@takes_graph
def greedy_set(graph: Graph, scores: ArrayLike) -> NDArray[np.int64]:
    """The nodes taken when each is, from the largest score down, unless a neighbour was; ties go to the lowest id.

    Returns:
        Ascending ids. No node can be added.

    Raises:
        UsageError: If there is not one score per node.

    Example:
        >>> path = Graph.from_edges([[0, 1], [1, 2]])
        >>> greedy_set(path, [1.0, 3.0, 2.0]).tolist()
        [1]
    """
    order = np.argsort(-check_scores(graph, scores), kind="stable")
    return np.flatnonzero(take_greedily(graph.indptr, graph.indices, order))


@takes_graph
def min_degree_set(graph: Graph) -> NDArray[np.int64]:
    """The nodes taken when one with the fewest neighbours left is, and it and its neighbours are removed.

    Returns:
        Ascending ids. Ties go to the lowest id.
    """
    return np.flatnonzero(_min_degree(graph.indptr, graph.indices))


@takes_graph
def improve(graph: Graph, nodes: ArrayLike) -> NDArray[np.int64]:
    """A set at least as large, which no exchange of one node for two can enlarge.

    Free nodes are added first; then one node leaves wherever two others can enter (the local search of Andrade,
    Resende, Werneck 2012, without its random restarts).

    Raises:
        UsageError: If ``nodes`` is not an independent set.

    Example:
        >>> star = Graph.from_edges([[0, 1], [0, 2], [0, 3]])
        >>> improve(star, [0]).tolist()
        [1, 2, 3]
    """
    return np.flatnonzero(_improve(graph.indptr, graph.indices, check_independent(graph, nodes)))


@takes_graph
def check_independent(graph: Graph, nodes: ArrayLike) -> NDArray[np.int64]:
    """The nodes as an array.

    Raises:
        UsageError: If two are neighbours, named in the message, or one is not a node of the graph.
    """
    found = check_nodes(graph, nodes, "the set")
    if (edge := _conflict(graph, found)) is not None:
        raise UsageError(f"the set is not independent: nodes {edge[0]} and {edge[1]} are neighbours.")
    return found


@takes_graph
def is_independent(graph: Graph, nodes: ArrayLike) -> bool:
    """Whether no two nodes are neighbours.

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
    """A largest independent set, proven so, for small graphs.

    Solved as an integer program by HiGHS, which scipy brings along.

    Args:
        graph: The graph; a hundred nodes or so.
        seconds: How long to try.

    Raises:
        UsageError: If scipy is missing, or there is no proof within the time.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError as error:
        raise UsageError("the exact optimum needs scipy: pip install 'normplace[lab]'.") from error
    if not graph.num_edges:
        return np.arange(graph.num_nodes)
    edges = graph.edges()
    rows = np.repeat(np.arange(len(edges)), 2)
    at_most_one = coo_array((np.ones(2 * len(edges)), (rows, edges.ravel())), shape=(len(edges), graph.num_nodes))
    found = milp(
        -np.ones(graph.num_nodes),
        integrality=np.ones(graph.num_nodes),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(at_most_one.tocsr(), ub=1.0),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if found.status != 0:
        raise UsageError(f"no optimum was proven within {seconds:g} s: allow more seconds, or take a smaller graph.")
    return check_independent(graph, np.flatnonzero(found.x > 0.5))


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
        replay(tree, key, node)
        for near in indices[indptr[node] : indptr[node + 1]]:
            if key[near] == gone:
                continue
            key[near] = gone
            replay(tree, key, near)
            for far in indices[indptr[near] : indptr[near + 1]]:
                if key[far] > gone:
                    key[far] += 1
                    replay(tree, key, far)
    return taken


@compiled
def _enter(indptr, indices, taken, tight, node):
    taken[node] = True
    for near in indices[indptr[node] : indptr[node + 1]]:
        tight[near] += 1


@compiled
def _improve(indptr, indices, nodes):
    num_nodes = len(indptr) - 1
    taken = np.zeros(num_nodes, np.bool_)
    tight = np.zeros(num_nodes, np.int32)  # neighbours in the set
    for node in nodes:
        _enter(indptr, indices, taken, tight, node)
    for node in range(num_nodes):
        if not taken[node] and tight[node] == 0:
            _enter(indptr, indices, taken, tight, node)
    waiting = np.flatnonzero(taken).astype(np.int32)
    near_mark = np.full(num_nodes, -1, np.int32)
    while len(waiting):
        later = np.zeros(num_nodes, np.bool_)
        for leaver in waiting:
            if not taken[leaver]:
                continue
            around = indices[indptr[leaver] : indptr[leaver + 1]]
            loose = around[tight[around] == 1]
            entering = -1
            for one in loose:
                for near in indices[indptr[one] : indptr[one + 1]]:
                    near_mark[near] = one
                for two in loose:
                    if two != one and near_mark[two] != one:
                        entering = one
                        break
                if entering >= 0:
                    break
            if entering < 0:
                continue
            taken[leaver] = False
            for near in around:
                tight[near] -= 1
            _enter(indptr, indices, taken, tight, entering)
            later[entering] = True
            for near in loose:
                if not taken[near] and tight[near] == 0:
                    _enter(indptr, indices, taken, tight, near)
                    later[near] = True
            # Only neighbours of the one that left can have become loose, and only for their one neighbour in the set.
            for near in around:
                if tight[near] == 1:
                    for other in indices[indptr[near] : indptr[near + 1]]:
                        if taken[other]:
                            later[other] = True
        waiting = np.flatnonzero(later & taken).astype(np.int32)
    return taken
