"""The convolutions of the study, and the slots of a topology scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from normplace.errors import UsageError

AGGREGATIONS = {"softmax": "softmax attention", "mean": "mean", "sum": "sum"}
SLOTS = {"none": "no scale", "before": "before the norm", "after": "after the norm", "head": "at the head only"}
HEADS = 4


def convolution(aggregation: str) -> Callable[[int, int], nn.Module]:
    """A factory of PyG convolutions: GAT for softmax attention, GraphSAGE for mean and sum.

    Raises:
        UsageError: If PyG is not installed.
    """
    try:
        from torch_geometric.nn import GATConv, SAGEConv
    except ImportError as error:
        raise UsageError("this study uses PyG's convolutions: pip install 'normplace[graphs]'.") from error
    if aggregation == "softmax":
        return lambda in_dim, out_dim: GATConv(in_dim, out_dim // HEADS, heads=HEADS)
    return partial(SAGEConv, aggr=aggregation)
