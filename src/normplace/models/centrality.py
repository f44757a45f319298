"""Counts and centralities of the nodes of a graph, in PyTorch.

Every function takes the edges of :func:`simple_edges`: sorted, without self-loops and repeats. All arithmetic is in
float64, on the device of the edges. :mod:`normplace.models.topology` makes positive scalars of them for networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normplace._shared.edge_keys import sorted_keys, split_keys
from normplace.errors import UsageError
from normplace.ops.backends import numba_unavailable_reason
from normplace.ops.indices import check_edge_index, check_range
from normplace.ops.tracing import all_plain, in_transform, is_traced

CHUNK = 4_000_000
"""Edges that are read at once, so that temporary tensors stay small on large graphs."""
COMPILED = 10_000_000
"""Edges above which a loop compiled by numba takes less time with its compilation than tensor operations."""

TOO_MANY_PATHS = "two nodes have more than 1e308 shortest paths, so betweenness overflows: choose 'pagerank'."


def checked_edges(edges: Tensor, num_nodes: int) -> Tensor:
    """The edges as int64.

    Raises:
        UsageError: If they are not a 2 × E tensor of nodes from 0 to ``num_nodes - 1``.
    """
    check_edge_index(edges)
    check_range("the nodes of edge_index", edges, num_nodes, "renumber them, or correct num_nodes")
    return edges.long()


def simple_edges(edge_index: Tensor, num_nodes: int, undirected: bool) -> Tensor:
    """The edges sorted by source, without self-loops and repeats, each in both directions if ``undirected``."""
    edge_index = checked_edges(edge_index, num_nodes)
    if _has_array(edge_index):
        source, target = edge_index.numpy()
        return torch.from_numpy(split_keys(sorted_keys(source, target, num_nodes, undirected), num_nodes))
    edges = edge_index[:, edge_index[0] != edge_index[1]]
    if undirected:
        edges = torch.cat([edges, edges.flip(0)], 1)
    key = torch.unique(edges[0] * num_nodes + edges[1])
    return torch.stack([key // max(num_nodes, 1), key % max(num_nodes, 1)])


def _has_array(tensor: Tensor) -> bool:
    """Whether NumPy can read a tensor, and nothing records or transforms the operators that compute with it."""
    return tensor.device.type == "cpu" and all_plain(tensor) and not is_traced() and not in_transform()


def count(nodes: Tensor, num_nodes: int) -> Tensor:
    """How often each node occurs."""
    return torch.bincount(nodes, minlength=num_nodes)


def graph_total(values: Tensor, label: Tensor, groups: int) -> Tensor:
    """The sum of ``values`` over the nodes with the same label, repeated for each of them."""
    return values.new_zeros(groups).index_add_(0, label, values)[label]


class _Rows:
    """Neighbours of many nodes at once, from sorted edges (CSR)."""

    def __init__(self, edges: Tensor, num_nodes: int) -> None:
        self.targets = edges[1]
        self.degree = count(edges[0], num_nodes)
        self.start = self.degree.cumsum(0) - self.degree

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """All neighbours of ``nodes``, and for each the index of its node in ``nodes``."""
        counts = self.degree[nodes]
        owner = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), counts)
        within = torch.arange(len(owner), device=nodes.device) - (counts.cumsum(0) - counts)[owner]
        return self.targets[self.start[nodes][owner] + within], owner

    def parts(self, nodes: Tensor) -> Sequence[Tensor]:
        """The nodes in parts that have about :data:`CHUNK` neighbours each."""
        if self.targets.shape[0] <= CHUNK:
            return [nodes]
        part = self.degree[nodes].cumsum(0) // CHUNK
        return nodes.split(torch.unique_consecutive(part, return_counts=True)[1].tolist())


def core_numbers(edges: Tensor, num_nodes: int) -> Tensor:
    """The largest k such that a node is in a subgraph of in-degree at least k (Seidman 1983).

    It removes whole fronts of nodes at a time, so the work is one pass over the edges plus one step per front.
    """
    rows = _Rows(edges, num_nodes)
    degree, core = count(edges[1], num_nodes), torch.zeros_like(rows.degree)
    alive = torch.ones(num_nodes, dtype=torch.bool, device=edges.device)
    level = 0
    while bool(alive.any()):
        level = max(level, int(degree[alive].min()))
        front = (alive & (degree <= level)).nonzero()[:, 0]
        while len(front):
            core[front] = level
            alive[front] = False
            front = _next_front(rows, front, degree, alive, level)
    return core


def _next_front(rows: _Rows, front: Tensor, degree: Tensor, alive: Tensor, level: int) -> Tensor:
    """Subtract the edges of a front from the degrees, and return the remaining nodes that it leaves below a level."""
    parts = rows.parts(front)
    if len(parts) == 1:
        touched, _ = rows.of(front)
        degree.index_add_(0, touched, -torch.ones_like(touched))
        return torch.unique(touched[alive[touched] & (degree[touched] <= level)])
    for part in parts:
        touched, _ = rows.of(part)
        degree.index_add_(0, touched, -torch.ones_like(touched))
    # All remaining nodes of a smaller degree were touched: those that were not had a larger one before.
    return (alive & (degree <= level)).nonzero()[:, 0]


def triangles(edges: Tensor, num_nodes: int, chunk: int = CHUNK) -> Tensor:
    """The number of triangles through each node.

    Each edge is directed from the endpoint of smaller degree. Hubs then have few successors, and about ``E sqrt(E)``
    pairs of successors are tested, ``chunk`` at a time.
    """
    degree = count(edges[0], num_nodes)
    rank = torch.empty_like(degree)
    rank[torch.argsort(degree, stable=True)] = torch.arange(num_nodes, device=edges.device)
    up = edges[:, rank[edges[0]] < rank[edges[1]]]
    rows, keys = _Rows(up, num_nodes), up[0] * num_nodes + up[1]
    counts = torch.zeros(num_nodes, dtype=torch.long, device=edges.device)
    if up.shape[1] == 0:
        return counts
    work = rows.degree[up[0]].cumsum(0)
    first = 0
    while first < up.shape[1]:
        done = int(work[first - 1]) if first else 0
        last = max(first + 1, int(torch.searchsorted(work, done + chunk, right=True)))
        source, middle = up[0, first:last], up[1, first:last]
        third, owner = rows.of(source)
        wanted = middle[owner] * num_nodes + third
        index = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        hit = keys[index] == wanted
        counts += count(torch.cat([source[owner[hit]], middle[owner[hit]], third[hit]]), num_nodes)
        first = last
    return counts


def _add_along(edges: Tensor, values: Tensor, sums: Tensor) -> Tensor:
    """Add the value of each edge's source to the sum of its target, in the order of the edges."""
    if edges.shape[1] > COMPILED and _has_array(values) and numba_unavailable_reason() is None:
        from normplace.models.edge_loops import add_along_edges

        add_along_edges(edges[0].numpy(), edges[1].numpy(), values.numpy(), sums.numpy())
        return sums
    for source, target in zip(edges[0].split(CHUNK), edges[1].split(CHUNK), strict=True):
        sums.index_add_(0, target, values[source])
    return sums


def pagerank(edges: Tensor, num_nodes: int, label: Tensor, damping: float, tolerance: float = 1e-12) -> Tensor:
    """PageRank (Brin, Page 1998) in each graph of a disjoint union, summing to 1 in each.

    Nodes without a successor distribute their rank over their own graph.

    Args:
        edges: The directed edges; here a repeated edge counts repeatedly.
        num_nodes: Number of nodes.
        label: The graph of each node, below ``num_nodes``.
        damping: Probability of following an edge.
        tolerance: Stop at this mean change, relative to the mean rank.
    """
    out = count(edges[0], num_nodes).double()
    size = graph_total(torch.ones_like(out), label, num_nodes)
    share, dangling = 1 / out, (out == 0).double()
    rank = 1 / size
    # Every step multiplies the change by the damping, so this many steps always suffice.
    for _ in range(10_000):
        moved = _add_along(edges, share * rank, torch.zeros_like(rank))
        idle = graph_total(dangling * rank, label, num_nodes)
        new = damping * (moved + idle / size) + (1 - damping) / size
        change = float(((new - rank).abs() * size).mean()) if num_nodes else 0.0
        rank = new
        if change < tolerance:
            break
    return rank


def components(edges: Tensor, num_nodes: int) -> Tensor:
    """The smallest node of each node's connected component, by label propagation with pointer jumping."""
    label = torch.arange(num_nodes, device=edges.device)
    while True:
        new = label.scatter_reduce(0, edges[1], label[edges[0]], "amin")
        new = new[new]
        if torch.equal(new, label):
            return label
        label = new


def eigenvector(edges: Tensor, num_nodes: int, tolerance: float, iterations: int) -> Tensor:
    """The leading eigenvector of each connected component's adjacency, of mean square 1 in each.

    Power iteration of A + I: the identity does not change the vector and prevents oscillation on bipartite graphs.

    Raises:
        UsageError: If it does not converge in that many iterations.
    """
    label = components(edges, num_nodes)
    x = torch.ones(num_nodes, dtype=torch.float64, device=edges.device)
    size = graph_total(x, label, num_nodes)
    for _ in range(iterations):
        new = _add_along(edges, x, x.clone())
        new = new / (graph_total(new.square(), label, num_nodes) / size).sqrt()
        if num_nodes == 0 or float((new - x).abs().max()) < tolerance:
            return new
        x = new
    raise UsageError(
        f"eigenvector centrality did not converge to {tolerance:g} in {iterations} iterations, as on long thin graphs: "
        "allow more iterations, or choose 'pagerank'."
    )


def betweenness(
    edges: Tensor, num_nodes: int, sources: Tensor, directed: bool = False, elements: int = 4_000_000
) -> Tensor:
    """The shortest paths through each node, each pair's split among its ties (Brandes 2001), summed over ``sources``.

    Breadth-first search from many sources at once, level by level, by products with the adjacency. It needs the memory
    of several matrices of ``elements`` numbers. If every edge has its reverse and every node is a source, each pair
    counts twice; set ``directed`` if edges may lack their reverse.

    Raises:
        UsageError: If the number of shortest paths overflows.
    """
    edges = checked_edges(edges, num_nodes)  # a sparse product does not check them
    total = torch.zeros(num_nodes, dtype=torch.float64, device=edges.device)
    ones = torch.ones(edges.shape[1], dtype=torch.float64, device=edges.device)
    adjacency = torch.sparse_coo_tensor(edges, ones, (num_nodes, num_nodes), check_invariants=False).coalesce()
    arriving = adjacency.t().coalesce() if directed else adjacency
    for part in sources.split(max(1, elements // max(num_nodes, 1))):
        columns = torch.arange(len(part), device=edges.device)
        paths = torch.zeros(num_nodes, len(part), dtype=torch.float64, device=edges.device)
        paths[part, columns] = 1
        level = torch.where(paths > 0, 0, -1)
        front, depth = paths, 0
        while True:
            reached = torch.sparse.mm(arriving, front)
            front = torch.where(level < 0, reached, 0)
            if not bool(front.any()):
                break
            depth += 1
            level[front > 0] = depth
            paths = paths + front
        if bool(paths.isinf().any()):
            raise UsageError(TOO_MANY_PATHS)
        carried = torch.zeros_like(paths)
        for d in range(depth, 0, -1):
            give = torch.where(level == d, (1 + carried) / paths, 0)
            carried = carried + torch.where(level == d - 1, paths * torch.sparse.mm(adjacency, give), 0)
        carried[part, columns] = 0
        total += carried.sum(1)
    return total
