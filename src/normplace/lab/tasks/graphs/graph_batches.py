"""Many graphs with labels, concatenated, and batches of them gathered by index."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normplace.lab.tasks.graphs.gathering import gather_graphs

STORED = ("x", "edge_index", "edge_attr", "y")


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """A batch of graphs as one disjoint graph.

    Args:
        x: Features or categories of the nodes.
        edge_index: Source and target of each edge in both directions, 2 × E.
        edge_attr: Features or categories of the edges.
        batch: Index of the graph of each node.
        y: Labels, graphs × labels; NaN where a label is unknown.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    batch: Tensor
    y: Tensor

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return len(self.y)


@dataclass(frozen=True, eq=False)
class GraphSet:
    """All graphs of a task, concatenated, and their split.

    Args:
        x: Features or categories of all nodes; without columns if a batch sums the features of their edges.
        edge_index: Source and target of each edge, numbered within each graph.
        edge_attr: Features or categories of the edges.
        nodes: Number of nodes of each graph, on the CPU.
        edges: Number of stored edges of each graph, on the CPU.
        y: Labels, graphs × labels, float32; NaN where a label is unknown.
        train: Indices of the training graphs, on the CPU.
        valid: Indices of the validation graphs.
        test: Indices of the test graphs.
        both_directions: Whether a batch adds the reverse of each edge, which halves the memory of the set.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    nodes: Tensor
    edges: Tensor
    y: Tensor
    train: Tensor
    valid: Tensor
    test: Tensor
    both_directions: bool = field(default=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_bytes(self) -> int:
        """Size of the tensors that :meth:`to` moves."""
        return sum(getattr(self, name).nbytes for name in STORED)

    def to(self, device: torch.device | str) -> GraphSet:
        """The same graphs with nodes, edges and labels on ``device``."""
        return replace(self, **{name: getattr(self, name).to(device) for name in STORED})

    def batch(self, indices: Tensor, device: torch.device | str | None = None) -> GraphBatch:
        """A batch of graphs.

        Args:
            indices: Indices of the graphs, on the CPU, in any order.
            device: Where the batch is needed; by default where the graphs are.

        Raises:
            UsageError: If an index is out of range, or there are none.
        """
        chosen = gather_graphs(self.nodes, self.edges, indices, self.edge_index)
        pairs, attr = chosen.edge_index, self.edge_attr[chosen.edges]
        if self.both_directions:
            pairs, attr = interleave(pairs), attr.repeat_interleave(2, 0)
        x = self.x[chosen.nodes] if self.x.shape[1] else sum_of_edges(pairs[0], attr, len(chosen.nodes))
        if not attr.is_floating_point():
            x, attr = x.long(), attr.long()
        home = self.edge_index.device
        parts = (x, pairs, attr, chosen.batch, self.y[indices.to(home)])
        return GraphBatch(*(part.to(device or home) for part in parts))


def interleave(pairs: Tensor) -> Tensor:
    """Each edge followed by its reverse."""
    return torch.stack([pairs, pairs.flip(0)], 2).reshape(2, -1)


def sum_of_edges(source: Tensor, edge_attr: Tensor, num_nodes: int) -> Tensor:
    """The sum of the features of the edges that leave each node."""
    return edge_attr.new_zeros(num_nodes, edge_attr.shape[1]).index_add_(0, source, edge_attr)
