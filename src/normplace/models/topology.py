"""Topology scalars: one strictly positive number per node, for a :class:`normplace.Scale`.

A scale is raised to a power and multiplied in, so its values must not be zero. The definitions:

| name | value | direction of edges | an isolated node has |
|---|---|---|---|
| degree | max(incoming edges, 1) | in, as PyG counts | 1 |
| out-degree | max(outgoing edges, 1) | out | 1 |
| total-degree | max(in + out, 1) | both | 1 |
| k-core | max(core number, 1) | ignored; ``direction`` counts ``in`` or ``out`` | 1 |
| pagerank | rank × nodes of its graph | followed | its graph's floor |
| clustering | 1 + clustering coefficient | ignored | 1 |
| eigenvector | leading eigenvector, mean square 1 | ignored | 1 |
| betweenness | 1 + pairs with shortest paths through it | ignored; ``directed=True`` follows it | 1 |
| constant | geometric mean of another scalar | as that scalar | its graph's value |

Scalars that ignore direction use the undirected graph, with an edge if there is one in either direction. Eigenvector
centrality has no directed form here, since it is 0 at every node that no cycle leads to; PageRank is its directed form
that is never 0.

Self-loops are dropped: a convolution adds its own, and they must not change the scale. Repeated edges count once; with
``multi=True``, the degrees and PageRank count each of them. Undirected graphs are stored as in PyG, each edge in both
directions, so their in-degree is their degree, and their total degree is twice that.

A batch of graphs is one disjoint union, and ``batch`` is the graph of each node. Degrees, k-core, clustering and
betweenness do not need it. PageRank teleports within a graph and ``constant`` averages over one; without ``batch`` they
treat the union as one graph. The eigenvector is computed in every connected component separately: over a whole
disconnected graph it would be zero outside one component.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice, expect_whole, unknown
from normplace.models import centrality
from normplace.ops.features import describe
from normplace.ops.indices import check_edge_index, check_range, is_integer


def degree(edge_index: Tensor, num_nodes: int, batch: Tensor, *, direction: str = "in", multi: bool = False) -> Tensor:
    """Edges at each node, at least 1: ``in``, ``out`` or ``total``."""
    ends = {"in": (1,), "out": (0,), "total": (0, 1)}
    expect_choice("direction", direction, ends)
    if multi:
        edges = edge_index[:, edge_index[0] != edge_index[1]]
    else:
        edges = centrality.simple_edges(edge_index, num_nodes, undirected=False)
    counts = [centrality.count(edges[end], num_nodes) for end in ends[direction]]
    return torch.stack(counts).sum(0).clamp(min=1).double()


def out_degree(edge_index: Tensor, num_nodes: int, batch: Tensor, *, multi: bool = False) -> Tensor:
    """Outgoing edges of each node, at least 1."""
    return degree(edge_index, num_nodes, batch, direction="out", multi=multi)


def total_degree(edge_index: Tensor, num_nodes: int, batch: Tensor, *, multi: bool = False) -> Tensor:
    """Incoming and outgoing edges of each node, at least 1."""
    return degree(edge_index, num_nodes, batch, direction="total", multi=multi)


def k_core(edge_index: Tensor, num_nodes: int, batch: Tensor, *, direction: str = "any") -> Tensor:
    """Core number of each node, at least 1, from neighbours in ``any`` direction, or from edges ``in`` or ``out``."""
    expect_choice("direction", direction, ("any", "in", "out"))
    directed = edge_index.flip(0) if direction == "out" else edge_index
    edges = centrality.simple_edges(directed, num_nodes, undirected=direction == "any")
    return centrality.core_numbers(edges, num_nodes).clamp(min=1).double()


def pagerank(
    edge_index: Tensor, num_nodes: int, batch: Tensor, *, damping: float = 0.85, multi: bool = False
) -> Tensor:
    """PageRank times the nodes of the graph: mean 1 in every graph, never below ``1 - damping``."""
    if not 0 <= damping < 1:
        raise UsageError(
            f"damping must lie in [0, 1): with 1, a node without incoming edges has rank 0; got {damping}."
        )
    if multi:
        edges = edge_index[:, edge_index[0] != edge_index[1]]
    else:
        edges = centrality.simple_edges(edge_index, num_nodes, undirected=False)
    label = torch.unique(batch, return_inverse=True)[1]
    rank = centrality.pagerank(edges, num_nodes, label, damping)
    return rank * centrality.graph_total(torch.ones_like(rank), label, num_nodes)


def clustering(edge_index: Tensor, num_nodes: int, batch: Tensor) -> Tensor:
    """1 + the fraction of connected pairs among a node's neighbours; 1 with fewer than two neighbours."""
    edges = centrality.simple_edges(edge_index, num_nodes, undirected=True)
    d = centrality.count(edges[0], num_nodes).double()
    closed = centrality.triangles(edges, num_nodes).double()
    return 1 + torch.where(d > 1, 2 * closed / (d * (d - 1)).clamp(min=1), 0)


def eigenvector(
    edge_index: Tensor, num_nodes: int, batch: Tensor, *, tolerance: float = 1e-9, iterations: int = 2000
) -> Tensor:
    """Eigenvector centrality of mean square 1 in each connected component, no value below 1e-6."""
    edges = centrality.simple_edges(edge_index, num_nodes, undirected=True)
    # Positive by Perron-Frobenius, but it decays exponentially with the distance from hubs and would underflow.
    return centrality.eigenvector(edges, num_nodes, tolerance, iterations).clamp(min=1e-6)


def betweenness(
    edge_index: Tensor,
    num_nodes: int,
    batch: Tensor,
    *,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    directed: bool = False,
) -> Tensor:
    """1 + the number of pairs with shortest paths through a node, exact or estimated from a sample of sources.

    With ``directed``, paths follow the edges and pairs are ordered, which doubles the numbers of an undirected graph.
    The exact work is nodes × edges: seconds for a few thousand nodes. ``samples`` sources, drawn without replacement
    from the whole union, give an unbiased estimate with the fraction ``samples / nodes`` of the work.
    """
    edges = centrality.simple_edges(edge_index, num_nodes, undirected=not directed)
    sources = torch.arange(num_nodes, device=edges.device)
    if samples is not None:
        if not 1 <= samples <= num_nodes:
            raise UsageError(f"samples must lie between 1 and the number of nodes {num_nodes}, got {samples}.")
        drawn = torch.randperm(num_nodes, generator=generator, device=generator.device if generator else "cpu")
        sources = drawn[:samples].to(edges.device)
    pairs = centrality.betweenness(edges, num_nodes, sources, directed) / (1 if directed else 2)
    return 1 + pairs * (num_nodes / max(len(sources), 1))


TOPOLOGIES: dict[str, Callable[..., Tensor]] = {
    "degree": degree,
    "out-degree": out_degree,
    "total-degree": total_degree,
    "k-core": k_core,
    "pagerank": pagerank,
    "clustering": clustering,
    "eigenvector": eigenvector,
    "betweenness": betweenness,
}


def topology(
    name: str, edge_index: Tensor, num_nodes: int | None = None, batch: Tensor | None = None, **options: Any
) -> Tensor:
    """One strictly positive scalar per node.

    Args:
        name: A key of :data:`TOPOLOGIES`, or ``constant:NAME`` (``constant`` for the degree) for the geometric mean of
            that scalar over each graph, a control with the same magnitude and no information about the node.
        edge_index: Source and target of each edge, 2 × E.
        num_nodes: Number of nodes; by default from ``batch`` or the largest node of an edge.
        batch: The graph of each node; None if there is one graph.
        **options: Options of the scalar, such as ``samples`` of ``betweenness``.

    Returns:
        A tensor of ``num_nodes`` values in the default dtype, on the device of the edges.

    Raises:
        UsageError: If a name or option is unknown, a node is out of range, or an edge connects two graphs.

    Examples:
        >>> star = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
        >>> topology("degree", star, 5).tolist()
        [3.0, 1.0, 1.0, 1.0, 1.0]
    """
    kind, constant = check_name(name)
    function = TOPOLOGIES[kind]
    choices = [key for key, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        expect_choice(f"option of {kind!r}:", option, choices)
    edges, nodes, graphs = checked(edge_index, num_nodes, batch)
    values = function(edges, nodes, graphs, **options)
    if constant:
        label = torch.unique(graphs, return_inverse=True)[1]
        size = centrality.graph_total(torch.ones_like(values), label, nodes)
        values = (centrality.graph_total(values.log(), label, nodes) / size).exp()
    return values.to(torch.get_default_dtype())


def check_name(name: str) -> tuple[str, bool]:
    """The key of :data:`TOPOLOGIES` for a name, and whether the name asks for the mean over each graph.

    Raises:
        UsageError: If there is no such scalar.
    """
    if not isinstance(name, str):
        raise unknown("topology scalar", name, [*TOPOLOGIES, "constant"])
    base, _, source = name.partition(":")
    constant = base == "constant"
    kind = (source or "degree") if constant else name
    if kind not in TOPOLOGIES:
        raise unknown("topology scalar", kind, TOPOLOGIES if constant else [*TOPOLOGIES, "constant"])
    return kind, constant


def checked(edge_index: Tensor, num_nodes: int | None, batch: Tensor | None) -> tuple[Tensor, int, Tensor]:
    """The edges as int64, the number of nodes and the graph of each node.

    Raises:
        UsageError: If they are not a graph.
    """
    check_edge_index(edge_index)
    edges = edge_index.long()
    if num_nodes is None:
        largest = int(edges.max()) + 1 if edges.numel() else 0
        num_nodes = largest if batch is None else len(batch)
    expect_whole(0, num_nodes=num_nodes)
    check_range("the nodes of edge_index", edges, num_nodes, "renumber them, or correct num_nodes")
    if batch is None:
        return edges, num_nodes, torch.zeros(num_nodes, dtype=torch.long, device=edges.device)
    if not isinstance(batch, Tensor) or batch.shape != (num_nodes,) or not is_integer(batch):
        raise UsageError(f"batch must hold the graph of each of the {num_nodes} nodes, got {describe(batch)}.")
    if bool((batch[edges[0]] != batch[edges[1]]).any()):
        raise UsageError("an edge connects two graphs of the batch: offset the node numbers of each graph.")
    return edges, num_nodes, batch
