"""Network dismantling: how fast a graph falls apart when its nodes are removed in an order.

The whole curve costs one pass over the edges: nodes are added back from last to first and components merged, as in
Newman and Ziff (2001), rather than found anew after each removal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError, unknown
from normplace.lab.tasks.selection._compiled import compiled, positive
from normplace.lab.tasks.selection.graph import Graph, check_nodes, check_scores, takes_graph

Whole = Literal["component", "nodes"]


@dataclass(frozen=True, eq=False)
class Dismantling:
    """What an order of removals did.

    Attributes:
        curve: Size of the largest component after 0, 1, 2, ... removals.
        num_nodes: Nodes of the graph.
    """

    curve: NDArray[np.int32]
    num_nodes: int

    @property
    def R(self) -> float:
        """Robustness of Schneider et al. (2011): the mean over q = 1..N of the largest component's share of N."""
        return float(self._whole()[1:].sum() / self.num_nodes**2)

    @property
    def auc(self) -> float:
        """Area under the curve of shares of N against removed shares of N, by trapezoids, from none to all removed."""
        curve = self._whole()
        return float((curve[1:].sum() + curve[:-1].sum()) / 2 / self.num_nodes**2)

    def removals_to(self, share: float, of: Whole = "component") -> int | None:
        """The fewest removals that leave no component above a share.

        Args:
            share: The share, 0.1 and 0.01 being usual.
            of: A share of the largest component before any removal, or of all ``"nodes"``.

        Returns:
            The number, or None when the order ends before it.

        Raises:
            UsageError: If ``share`` is not from 0 to 1, or ``of`` is another word.
        """
        small = np.flatnonzero(self.curve <= _limit(int(self.curve[0]), self.num_nodes, share, of))
        return int(small[0]) if len(small) else None

    def _whole(self) -> NDArray[np.int64]:
        if len(self.curve) != self.num_nodes + 1:
            raise UsageError(
                f"the order has {len(self.curve) - 1} of {self.num_nodes} nodes, and R and AUC are of all: "
                "complete it, or use removals_to."
            )
        return self.curve.astype(np.int64)


@takes_graph
def dismantle(graph: Graph, order: ArrayLike) -> Dismantling:
    """The robustness curve of a removal order, which may stop before all nodes are removed.

    Raises:
        UsageError: If ``order`` is not of distinct nodes of the graph.

    Example:
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
    """The order in which the best ``step`` nodes are removed and what is left is scored anew, until no edge is left.

    What is left is passed without the nodes that have no edge any more; those come last, by id.

    Args:
        graph: The graph.
        score: From a graph to one number per node, the largest removed first; ties go to the lowest id.
        step: Nodes removed between two scorings.
        count: How many nodes to return; None is all.

    Raises:
        UsageError: If ``step`` or ``count`` is not positive, or a score is missing or NaN.
    """
    step = positive(step, "step")
    wanted = graph.num_nodes if count is None else positive(count, "count")
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
def reinsert(graph: Graph, order: ArrayLike, share: float, of: Whole = "component") -> NDArray[np.int64]:
    """An order that reaches a share in as many removals or fewer, by keeping the nodes that were removed in vain.

    Of the nodes ``order`` removes until no component is above the share, the one that makes the smallest component is
    put back, again and again, as long as no component rises above the share (Zdeborová et al. 2016, after CoreHD).
    Those not put back come first, in their former order; then those put back, the last one first; then the rest.

    Args:
        graph: The graph.
        order: All of its nodes.
        share: The share of the largest component, or of all nodes.
        of: Which of the two.

    Raises:
        UsageError: If ``order`` is not a permutation, or ``share`` not from 0 to 1.
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
    if not 0 <= share <= 1:
        raise UsageError(f"a share is from 0 to 1, not {share!r}.")
    if of not in ("component", "nodes"):
        raise unknown("whole", of, ["component", "nodes"])
    # 0.1 * 30 is a rounding error below 3, which must not cost a removal.
    return int(np.floor(share * (component if of == "component" else num_nodes) + 1e-9))


@compiled
def _find(parent, node):
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compiled
def _add(indptr, indices, parent, size, node):
    """Put ``node`` back among those with a positive size; the size of the component it is then in."""
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
    """The size of the component that ``node`` would make if put back."""
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
    # A candidate waits in the list of the size it would make. That only grows, so each list is emptied once.
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
