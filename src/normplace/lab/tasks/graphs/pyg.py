"""Graphs with node labels from PyG: ``from_pyg(Planetoid("data", "Cora")[0])``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.labelled import LabelledGraph

MASKS = ("train_mask", "val_mask", "test_mask")


def from_pyg(data: Any, name: str = "graph") -> LabelledGraph:
    """A labelled graph from a ``Data`` object of PyG.

    Args:
        data: With ``x``, ``y``, ``edge_index`` and the three masks, each of shape (nodes,) or (nodes, splits). Edges
            are made undirected; duplicates and self-loops are removed.
        name: Name of the graph.

    Raises:
        UsageError: If an attribute is missing or has an inconsistent shape.
    """
    for field in ("x", "y", "edge_index", *MASKS):
        if not isinstance(getattr(data, field, None), Tensor):
            raise UsageError(f"the data have no {field}: x, y, edge_index and {', '.join(MASKS)} are needed.")
    nodes, y = len(data.x), data.y.reshape(-1).long()
    if any(len(rows) != nodes for rows in (y, *(getattr(data, field) for field in MASKS))):
        raise UsageError(f"labels and masks must have one row for each of the {nodes} nodes.")
    train, val, test = (getattr(data, field).bool().reshape(nodes, -1).T for field in MASKS)
    if not train.shape == val.shape == test.shape:
        raise UsageError("the three masks must have the same number of splits: repeat a mask that all splits share.")
    edges = data.edge_index
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
        raise UsageError(f"edges must connect nodes 0 to {nodes - 1}, got {int(edges.min())} to {int(edges.max())}.")
    both = torch.cat([edges, edges.flip(0)], dim=1)
    both = torch.unique(both[:, both[0] != both[1]], dim=1)
    return LabelledGraph(name, data.x.float(), y, both, train, val, test)
