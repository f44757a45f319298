"""Parts of a large graph for mini-batches: random clusters, and sampled neighbours of chosen nodes.

A random partition assigns every node to a cluster, and a cluster keeps the edges between its nodes, as DeeperGCN does
on ogbn-proteins and ogbn-products and as PyG's ``RandomNodeLoader`` does. All clusters are cut in one pass over the
edges. PyG's ``NeighborLoader`` needs compiled extensions; :class:`NeighbourSampler` does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_whole


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Some nodes of a graph and some of the edges between them.

    Args:
        nodes: Index of each node in the graph.
        edge_index: Source and target of each edge, as positions in ``nodes``.
        edges: Index of each edge in the graph.
    """

    nodes: Tensor
    edge_index: Tensor
    edges: Tensor


def random_parts(num_nodes: int, parts: int, generator: torch.Generator) -> Tensor:
    """The cluster of each node, drawn uniformly.

    Raises:
        UsageError: If there is not at least one cluster.
    """
    expect_whole(1, parts=parts)
    return torch.randint(parts, (num_nodes,), generator=generator, dtype=torch.int32)


def clusters(edge_index: Tensor, part: Tensor, parts: int) -> Iterator[Subgraph]:
    """The subgraph of each cluster, in order; edges between clusters are left out."""
    part = part.to(edge_index.device)
    sizes = torch.bincount(part, minlength=parts)
    nodes = part.argsort(stable=True)
    first = sizes.cumsum(0) - sizes
    position = torch.empty_like(nodes)
    position[nodes] = torch.arange(len(nodes), device=nodes.device) - first.repeat_interleave(sizes)
    of_source = part[edge_index[0]]
    inside = (of_source == part[edge_index[1]]).nonzero()[:, 0]
    of_source = of_source[inside]
    edges = inside[of_source.argsort(stable=True)]
    counts = torch.bincount(of_source, minlength=parts)
    for own, kept in zip(nodes.split(sizes.tolist()), edges.split(counts.tolist()), strict=True):
        yield Subgraph(own, position[edge_index[:, kept]], kept)


def check_fanouts(fanouts: Sequence[int]) -> None:
    """Check the largest number of edges that each hop keeps of a node.

    Raises:
        UsageError: If there is no hop, or a fanout is not positive.
    """
    if not fanouts:
        raise UsageError("neighbours need at least one hop: pass fanouts such as 15 10 5.")
    for fanout in fanouts:
        expect_whole(1, fanout=fanout)


class NeighbourSampler:
    """Samples the neighbourhood of nodes, hop by hop, without replacement.

    Args:
        edge_index: Source and target of each edge, 2 × E.
        num_nodes: Number of nodes.
        fanouts: Largest number of incoming edges of a node that each hop keeps.

    Raises:
        UsageError: If there is no hop, or a fanout is not positive.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int, fanouts: Sequence[int]) -> None:
        check_fanouts(fanouts)
        self.edge_index, self.num_nodes, self.fanouts = edge_index, num_nodes, tuple(fanouts)
        self.by_target = edge_index[1].argsort(stable=True)
        self.degree = torch.bincount(edge_index[1], minlength=num_nodes)
        self.first = self.degree.cumsum(0) - self.degree

    def sample(self, seeds: Tensor, generator: torch.Generator) -> Subgraph:
        """The sampled neighbourhood; its first nodes are ``seeds``."""
        device = self.edge_index.device
        frontier = seeds.to(device)
        position = torch.full((self.num_nodes,), -1, device=device)
        position[frontier] = torch.arange(len(frontier), device=device)
        nodes, kept = [frontier], []
        count = len(frontier)
        for fanout in self.fanouts:
            edges = self._incoming(frontier, fanout, generator)
            kept.append(edges)
            sources = self.edge_index[0, edges].unique()
            frontier = sources[position[sources] < 0]
            position[frontier] = torch.arange(count, count + len(frontier), device=device)
            nodes.append(frontier)
            count += len(frontier)
        chosen = torch.cat(kept)
        return Subgraph(torch.cat(nodes), position[self.edge_index[:, chosen]], chosen)

    def _incoming(self, targets: Tensor, fanout: int, generator: torch.Generator) -> Tensor:
        """At most ``fanout`` random incoming edges of each target."""
        degree = self.degree[targets]
        total = int(degree.sum())
        owner = torch.repeat_interleave(degree, output_size=total)
        rank = torch.arange(total, device=degree.device) - (degree.cumsum(0) - degree)[owner]
        edges = self.by_target[self.first[targets][owner] + rank]
        shuffled = torch.randperm(total, generator=generator).to(degree.device)
        order = shuffled[owner[shuffled].argsort(stable=True)]  # each target's edges, in random order
        return edges[order][rank < fanout]
