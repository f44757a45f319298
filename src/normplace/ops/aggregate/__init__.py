"""Generalized aggregation over the neighbours of a node: softmax and power mean (Li et al. 2020, arXiv 2006.07739).

One number, which can be learned, moves both from the mean to the maximum and beyond. Memory grows with nodes, not
edges: the backward pass keeps the result and one more tensor of its size.
"""

from normplace.ops.aggregate.neighbours import Neighbours
from normplace.ops.aggregate.public import LinearEdge, TableEdge, powermean_aggregate, softmax_aggregate

__all__ = ["LinearEdge", "Neighbours", "TableEdge", "powermean_aggregate", "softmax_aggregate"]
