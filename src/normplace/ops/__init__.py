"""Numerical kernels: each has a reference in plain PyTorch beside the fast paths that must equal it."""

from normplace.ops.aggregate import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate

__all__ = [
    # Aggregation over the neighbours of a node
    "softmax_aggregate",
    "powermean_aggregate",
    "Neighbours",
    "LinearEdge",
    "TableEdge",
]
