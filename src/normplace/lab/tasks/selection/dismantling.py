"""Network dismantling: the size of the largest component while nodes are removed in some order.

The whole curve costs one pass over the edges: nodes are added back from last to first and components are merged (Newman
and Ziff 2001), instead of searching for components after each removal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError, expect_choice
from normplace.lab.tasks.selection.checks import check_count, check_nodes, check_probability, check_scores, takes_graph
from normplace.lab.tasks.selection.compiled import compiled
from normplace.lab.tasks.selection.graph import Graph

Reference = Literal["component", "nodes"]


@dataclass(frozen=True, eq=False)
class Dismantling:
    """The effect of a removal order.

    Attributes:
        curve: Size of the largest component after 0, 1, 2, ... removals.
        num_nodes: Number of nodes of the graph.
    """

    curve: NDArray[np.int32]
    num_nodes: int

    @property
    def R(self) -> float:
        """Robustness (Schneider et al. 2011): mean relative size of the largest component after 1 to N removals."""
        return float(self._full_curve()[1:].sum() / self.num_nodes**2)

    @property
    def auc(self) -> float:
        """Area under the relative component size as a function of the removed share, by the trapezoidal rule."""
        curve = self._full_curve()
        return float((curve[1:].sum() + curve[:-1].sum()) / 2 / self.num_nodes**2)

    def removals_to(self, share: float, of: Reference = "component") -> int | None:
        """The number of removals after which no component is above a share.

        Args:
            share: The share; 0.1 and 0.01 are common. A single node is not above a positive share, so that graphs of
                fewer than a hundred nodes have an answer besides all nodes.
            of: Whether it is a share of the initial largest ``"component"`` or of all ``"nodes"``.

        Returns:
            The number, or None if the order does not reach the share.

        Raises:
            UsageError: If ``share`` is not from 0 to 1, or ``of`` is unknown.
        """
        small = np.flatnonzero(self.curve <= _limit(int(self.curve[0]), self.num_nodes, share, of))
        return int(small[0]) if len(small) else None

    def _full_curve(self) -> NDArray[np.int64]:
        if len(self.curve) != self.num_nodes + 1:
            raise UsageError(
                f"the order has {len(self.curve) - 1} of {self.num_nodes} nodes, but R and AUC need all: "
                "complete it, or use removals_to."
            )
        return self.curve.astype(np.int64)


@takes_graph
def dismantle(graph: Graph, order: ArrayLike) -> Dismantling:
    """The robustness curve of a removal order, which need not contain all nodes.

    Raises:
        UsageError: If ``order`` does not contain distinct nodes of the graph.

    Examples:
        >>> star = Graph.from_edges([[0, 1], [0, 2], [0, 3]])
        >>> dismantle(star, [0, 1, 2, 3]).curve.tolist()
        [4, 1, 1, 1, 0]
    """
    nodes = check_nodes(graph, order, "the order")
    return Dismantling(component_sizes(graph.indptr, graph.indices, nodes), graph.num_nodes)


@takes_graph
def adaptive_order(
    graph: Graph, score: Callable[[Graph], ArrayLike], step: int = 1, count: int | None = None
) -> NDArray[np.int64]:
    """Repeatedly remove the ``step`` nodes with the largest scores and score the rest again, until no edges are left.

    Nodes that have lost all edges are not scored; they come last, by id.

    Args:
        graph: The graph.
        score: Maps a graph to one number per node; the largest is removed first, ties by lowest id.
        step: Number of nodes removed between two scorings.
        count: Number of nodes to return; None means all.

    Raises:
        UsageError: If ``step`` or ``count`` is not positive, or a score is missing or NaN.
    """
    step = check_count("step", step)
    wanted = graph.num_nodes if count is None else check_count("count", count)
    order: list[NDArray[np.int64]] = []
    left, names = graph, np.arange(graph.num_nodes)
    while left.num_edges and sum(map(len, order)) < wanted:
        order.append(names[np.argsort(-check_scores(left, score(left)), kind="stable")[:step]])
        gone = np.zeros(graph.num_nodes, bool)
        gone[order[-1]] = True
        gone = gone[names]
        if gone.all():
            break
        left, kept = left.without(gone)
        names = names[kept]
        if left.num_edges:
            left, kept = left.without(left.degrees == 0)
            names = names[kept]
    rest = np.ones(graph.num_nodes, bool)
    rest[np.concatenate([*order, names[:0]])] = False
    return np.concatenate([*order, np.flatnonzero(rest)])[:wanted]


@takes_graph
def reinsert(graph: Graph, order: ArrayLike, share: float, of: Reference = "component") -> NDArray[np.int64]:
    """An order that reaches a share with at most as many removals, by reinserting nodes (Zdeborová et al. 2016).

    Consider the nodes that ``order`` removes until no component is above the share. The one that creates the smallest
    component is reinserted, repeatedly, as long as no component exceeds the share. The new order has the nodes that
    were not reinserted, in their former order; then the reinserted ones, the last one first; then the rest.

    Args:
        graph: The graph.
        order: A permutation of all nodes.
        share: The target share, as in :meth:`Dismantling.removals_to`.
        of: Whether it is a share of the largest component or of all nodes.

    Raises:
        UsageError: If ``order`` is not a permutation, or ``share`` is not from 0 to 1.
    """
    nodes = check_nodes(graph, order, "the order")
    if len(nodes) != graph.num_nodes:
        raise UsageError(f"reinsertion needs an order of all {graph.num_nodes} nodes, not {len(nodes)}.")
    curve = component_sizes(graph.indptr, graph.indices, nodes)
    limit = _limit(int(curve[0]), graph.num_nodes, share, of)
    removed = int(np.flatnonzero(curve <= limit)[0])
    back = _reinsert(graph.indptr, graph.indices, nodes, removed, limit)
    kept = nodes[:removed][~np.isin(nodes[:removed], back)]
    return np.concatenate([kept, back[::-1], nodes[removed:]])


def _limit(component: int, num_nodes: int, share: float, of: str) -> int:
    check_probability("share", share)
    expect_choice("reference", of, ("component", "nodes"))
    # 0.1 * 30 is below 3 by rounding, which must not cost a removal.
    limit = int(np.floor(share * (component if of == "component" else num_nodes) + 1e-9))
    return max(limit, 1) if share > 0 else limit


@compiled
def _find(parent, node):
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compiled
def _add(indptr, indices, parent, size, node):
    """Add ``node`` to the graph of the nodes with a positive size; return the size of its component."""
    root = node
    size[node] = 1
    for place in range(indptr[node], indptr[node + 1]):
        other = indices[place]
        if size[other] > 0:
            other = _find(parent, other)
            if other != root:
                if size[other] > size[root]:
                    root, other = other, root
                parent[other] = root
                size[root] += size[other]
    return size[root]


@compiled
def component_sizes(indptr, indices, order):
    """Size of the largest component after 0, 1, 2, ... removals in ``order``."""
    num_nodes = len(indptr) - 1
    parent = np.arange(num_nodes).astype(np.int32)
    size = np.zeros(num_nodes, np.int32)
    stays = np.ones(num_nodes, np.bool_)
    stays[order] = False
    curve = np.empty(len(order) + 1, np.int32)
    largest = np.int32(0)
    for node in range(num_nodes):
        if stays[node]:
            largest = max(largest, _add(indptr, indices, parent, size, np.int32(node)))
    curve[len(order)] = largest
    for place in range(len(order) - 1, -1, -1):
        largest = max(largest, _add(indptr, indices, parent, size, np.int32(order[place])))
        curve[place] = largest
    return curve


@compiled
def _joined(indptr, indices, parent, size, seen, mark, node):
    """The size of the component that ``node`` would create."""
    total = 1
    for place in range(indptr[node], indptr[node + 1]):
        other = indices[place]
        if size[other] > 0:
            root = _find(parent, other)
            if seen[root] != mark:
                seen[root] = mark
                total += size[root]
    return total


@compiled
def _reinsert(indptr, indices, order, removed, limit):
    num_nodes = len(indptr) - 1
    parent = np.arange(num_nodes).astype(np.int32)
    size = np.zeros(num_nodes, np.int32)
    for place in range(removed, num_nodes):
        _add(indptr, indices, parent, size, np.int32(order[place]))
    # A candidate is in the list of the component size it would create. Sizes only grow, so each list is emptied once.
    first = np.full(limit + 2, -1, np.int32)
    following = np.full(num_nodes, -1, np.int32)
    seen = np.zeros(num_nodes, np.int64)
    mark = 0
    for place in range(removed):
        node = np.int32(order[place])
        mark += 1
        total = _joined(indptr, indices, parent, size, seen, mark, node)
        if total <= limit:
            following[node] = first[total]
            first[total] = node
    back = np.empty(removed, np.int64)
    count = 0
    for level in range(1, limit + 1):
        while first[level] >= 0:
            node = first[level]
            first[level] = following[node]
            mark += 1
            total = _joined(indptr, indices, parent, size, seen, mark, node)
            if total == level:
                _add(indptr, indices, parent, size, node)
                back[count] = node
                count += 1
            elif total <= limit:
                following[node] = first[total]
                first[total] = node
    return back[:count]
