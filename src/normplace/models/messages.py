"""Messages along the edges of a graph: their edge terms, and their storage where an aggregation needs it."""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.ops import LinearEdge, TableEdge
from normplace.ops.aggregate.adjacency import Graph, as_neighbours

EdgeTerms = Tensor | LinearEdge | TableEdge | None


class Reduction(Protocol):
    """A module that aggregates rows in groups, as PyG's aggregations do."""

    def __call__(self, x: Tensor, index: Tensor, *, dim_size: int, dim: int) -> Tensor:
        """Aggregate the rows along ``dim`` by their index."""
        ...


def edge_terms(
    edge_attr: Tensor | None, linear: nn.Linear | None, table: nn.Embedding | None, sent: Tensor
) -> EdgeTerms:
    """What is added to the source's features on each edge.

    Args:
        edge_attr: Features or types of the edges.
        linear: The map of features to the messages' width, if there is one.
        table: The term of each type, if edges have types.
        sent: The sources' features, for the dtype.

    Raises:
        UsageError: If the features are not real numbers.
    """
    if edge_attr is None:
        return None
    if table is not None:
        return TableEdge(edge_attr, table.weight.to(sent.dtype))
    if not isinstance(edge_attr, Tensor) or edge_attr.is_complex():
        raise UsageError(f"edge_attr must be a tensor of real numbers, got {type(edge_attr).__name__}.")
    edge_attr = edge_attr.to(sent.dtype)
    if linear is None:
        return edge_attr
    if isinstance(linear, nn.LazyLinear):
        linear(edge_attr[:0])  # reads the width
    if edge_attr.dim() != 2:
        return linear(edge_attr).to(sent.dtype)
    bias = linear.bias
    return LinearEdge(edge_attr, linear.weight.to(sent.dtype), None if bias is None else bias.to(sent.dtype))


def stored_terms(edge: EdgeTerms) -> Tensor | None:
    """The edge terms as a tensor with one row for each edge."""
    if isinstance(edge, LinearEdge):
        return nn.functional.linear(*edge)
    if isinstance(edge, TableEdge):
        return nn.functional.embedding(edge.types, edge.table)
    return edge


def as_channels(x: Tensor, edge: EdgeTerms, dim: int) -> tuple[Tensor, EdgeTerms]:
    """Node features with several dimensions as one row for each node, and edge terms that fit.

    Args:
        x: Features with the nodes in dimension ``dim``.
        edge: Edge terms for the last dimension, or with all dimensions of ``x``.
        dim: The dimension of the nodes.
    """
    rows = x.movedim(dim, 0)
    copies = math.prod(rows.shape[1:-1])
    rows = rows.reshape(len(rows), copies * rows.shape[-1])
    if isinstance(edge, LinearEdge):
        bias = None if edge.bias is None else edge.bias.repeat(copies)
        return rows, LinearEdge(edge.features, edge.weight.repeat(copies, 1), bias)
    if isinstance(edge, TableEdge):
        return rows, TableEdge(edge.types, edge.table.repeat(1, copies))
    if edge is None or edge.dim() == 2:
        return rows, None if edge is None else edge.repeat(1, copies)
    terms = edge.movedim(dim, 0)
    return rows, terms.reshape(len(terms), rows.shape[1])


def aggregate_stored(
    reduction: Reduction,
    sent: Tensor,
    graph: Graph,
    edge: EdgeTerms,
    num_dst: int,
    eps: float,
    dim: int,
    weights: Tensor | None,
) -> Tensor:
    """Store every message and aggregate them with any module.

    Args:
        reduction: The module.
        sent: The sources' features.
        graph: The graph.
        edge: Edge terms.
        num_dst: Number of targets.
        eps: Added to every rectified message.
        dim: The dimension of the nodes.
        weights: A factor for each message, or None.

    Raises:
        UsageError: If there is not one factor for each edge.
    """
    source, target = as_neighbours(graph, sent.shape[dim], num_dst).edge_index
    messages, terms = sent.index_select(dim, source), stored_terms(edge)
    shape = [1] * sent.dim()
    shape[dim] = -1
    if terms is not None:
        if terms.dim() == 2 < sent.dim():
            shape[-1] = terms.shape[-1]
            terms, shape[-1] = terms.reshape(shape), 1
        messages = messages + terms
    messages = messages.relu() + eps
    if weights is not None:
        if weights.shape != source.shape:
            raise UsageError(
                f"there are {len(source)} edges, but a mask of {tuple(weights.shape)}: mask the edges of this graph."
            )
        messages = messages * weights.reshape(shape).to(messages.dtype)
    return reduction(messages, target, dim_size=num_dst, dim=dim)
