"""Named convolutions of selection policies and studies, from PyG."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from normplace.errors import UsageError, unknown

AGGREGATIONS = {"softmax": "softmax attention", "mean": "mean", "sum": "sum"}
HEADS = 4


def convolution(aggregation: str) -> Callable[[int, int], nn.Module]:
    """A factory of PyG convolutions: GAT with four heads for softmax attention, GraphSAGE for mean and sum.

    Raises:
        UsageError: If the aggregation is unknown, or PyG is not installed.
    """
    if aggregation not in AGGREGATIONS:
        raise unknown("aggregation", aggregation, AGGREGATIONS)
    try:
        from torch_geometric.nn import GATConv, SAGEConv
    except ImportError as error:
        raise UsageError("the convolutions are PyG's: pip install 'normplace[graphs]'.") from error
    if aggregation == "softmax":
        return lambda in_dim, out_dim: GATConv(in_dim, out_dim // HEADS, heads=HEADS)
    return partial(SAGEConv, aggr=aggregation)
