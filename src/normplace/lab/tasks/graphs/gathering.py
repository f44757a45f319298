"""Gather chosen graphs out of many that are stored concatenated.

Sizes are on the CPU, so a batch is gathered on a GPU without synchronization.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError


@dataclass(frozen=True, eq=False)
class GatheredGraphs:
    """The nodes and edges of chosen graphs, as one disjoint graph.

    Args:
        nodes: Index of each node among the nodes of all graphs.
        edges: Index of each edge among the edges of all graphs.
        edge_index: Source and target of each edge, numbered within the disjoint graph.
        batch: Index of the graph of each node.
    """

    nodes: Tensor
    edges: Tensor
    edge_index: Tensor
    batch: Tensor


def gather_graphs(nodes: Tensor, edges: Tensor, indices: Tensor, edge_index: Tensor) -> GatheredGraphs:
    """Gather the nodes and edges of chosen graphs on the device of ``edge_index``.

    Args:
        nodes: Number of nodes of each graph, on the CPU.
        edges: Number of edges of each graph, on the CPU.
        indices: Indices of the chosen graphs, on the CPU, in any order.
        edge_index: Source and target of each edge of all graphs, numbered within each graph.

    Raises:
        UsageError: If an index is out of range, or there are none.
    """
    if not len(indices) or int(indices.min()) < 0 or int(indices.max()) >= len(nodes):
        raise UsageError(f"a batch needs at least one graph, with indices from 0 to {len(nodes) - 1}.")
    device = edge_index.device
    batch, node_rows = gather_rows(nodes, indices, device)
    owner, edge_rows = gather_rows(edges, indices, device)
    counts = nodes[indices]
    first = (counts.cumsum(0) - counts).to(device)
    return GatheredGraphs(node_rows, edge_rows, edge_index[:, edge_rows].long() + first[owner], batch)


def gather_rows(sizes: Tensor, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The concatenated rows of chosen items.

    Args:
        sizes: Number of rows of each item, on the CPU.
        indices: The chosen items, on the CPU.
        device: Where the result is needed.

    Returns:
        For each row, the position of its item in ``indices``, and its index among the rows of all items.
    """
    chosen = sizes[indices]
    total = int(chosen.sum())
    first = sizes.cumsum(0)[indices] - chosen  # of each item among all rows
    shift = first - (chosen.cumsum(0) - chosen)
    position = torch.repeat_interleave(chosen.to(device), output_size=total)
    return position, torch.arange(total, device=device) + shift.to(device)[position]
