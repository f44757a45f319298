"""Named convolutions of selection policies and studies, from PyG."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from normplace.errors import UsageError, expect_choice

AGGREGATIONS = {"softmax": "softmax attention", "mean": "mean", "sum": "sum"}
CONVOLUTIONS = {**AGGREGATIONS, "gatv2": "GATv2", "gcn": "GCN", "gin": "GIN"}
HEADS = 4


def convolution(name: str) -> Callable[[int, int], nn.Module]:
    """A factory of PyG convolutions: GAT with four heads for softmax attention, GraphSAGE for mean and sum, or by name.

    Raises:
        UsageError: If the name is unknown, or PyG is not installed.
    """
    expect_choice("convolution", name, CONVOLUTIONS)
    try:
        from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
    except ImportError as error:
        raise UsageError("PyG's convolutions are needed: pip install 'normplace[graphs]'.") from error
    if name in ("softmax", "gatv2"):
        attention = GATConv if name == "softmax" else GATv2Conv
        return lambda in_dim, out_dim: attention(in_dim, out_dim // HEADS, heads=HEADS)
    if name == "gcn":
        return GCNConv
    if name == "gin":
        return lambda in_dim, out_dim: GINConv(nn.Linear(in_dim, out_dim))
    return partial(SAGEConv, aggr=name)
