"""Messages along the edges of a graph: their edge terms, and their storage where an aggregation needs it."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.ops import LinearEdge, TableEdge
from normplace.ops.aggregate.adjacency import Graph, as_neighbours
from normplace.ops.aggregate.op import TYPES_ADVICE
from normplace.ops.features import describe
from normplace.ops.indices import checked_indices, is_integer

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

    Raises:
        UsageError: If the features are not real numbers, or do not have the width of the map or of the messages.
    """
    if edge_attr is None:
        return None
    if table is not None:
        return TableEdge(edge_attr, table.weight.to(sent.dtype))
    if not isinstance(edge_attr, Tensor) or edge_attr.is_complex():
        raise UsageError(f"edge_attr must be a tensor of real numbers, got {type(edge_attr).__name__}.")
    edge_attr = edge_attr.to(sent.dtype)
    is_lazy = isinstance(linear, nn.LazyLinear)
    _check_width(edge_attr, None if is_lazy else sent.shape[-1] if linear is None else linear.in_features, sent)
    if linear is None:
        return edge_attr
    if is_lazy:
        linear(edge_attr[:0])  # reads the width
    if edge_attr.dim() != 2:
        return linear(edge_attr).to(sent.dtype)
    bias = linear.bias
    return LinearEdge(edge_attr, linear.weight.to(sent.dtype), None if bias is None else bias.to(sent.dtype))


def _is_traced_by_jit() -> bool:
    """Whether sizes are tensors, of which a comparison would be recorded."""
    return torch._C._get_tracing_state() is not None


def _check_width(edge_attr: Tensor, width: int | None, sent: Tensor) -> None:
    """Raise an error for edge features of another width, or without one row for each edge; None for any width."""
    if _is_traced_by_jit():
        return
    if edge_attr.dim() not in (2, sent.dim()) or (width is not None and edge_attr.shape[-1] != width):
        expected = "any number of" if width is None else width
        raise UsageError(
            f"edge_attr must have one row of {expected} features for each edge, got {describe(edge_attr)}: reshape it, "
            "or set edge_dim."
        )


def _stored_terms(edge: EdgeTerms, messages: Tensor, dim: int) -> Tensor | None:
    """The edge terms as a tensor that is added to the messages, which have the edges in dimension ``dim``.

    Raises:
        UsageError: If there is not one term for each message, or a type is not a row of the table.
    """
    if edge is None:
        return None
    if isinstance(edge, TableEdge):
        types, table = edge
        if not isinstance(types, Tensor) or types.shape != messages.shape[dim : dim + 1] or not is_integer(types):
            raise UsageError(
                f"edge_attr must be one integer type for each of the {messages.shape[dim]} edges, got "
                f"{describe(types)}."
            )
        terms = nn.functional.embedding(checked_indices("edge types", types, len(table), TYPES_ADVICE), table)
    else:
        terms = nn.functional.linear(*edge) if isinstance(edge, LinearEdge) else edge
    shape, expected = list(messages.shape), tuple(messages.shape)
    if terms.dim() == 2:  # the same for all other dimensions
        expected = messages.shape[dim], messages.shape[-1]
        shape = [1] * messages.dim()
        shape[dim], shape[-1] = expected
    if not _is_traced_by_jit() and terms.shape != expected:
        raise UsageError(f"edge_attr must become {expected} for these edges and messages, got {tuple(terms.shape)}.")
    return terms.reshape(shape)


def as_channels(x: Tensor, edge: EdgeTerms, dim: int) -> tuple[Tensor, EdgeTerms]:
    """Node features with several dimensions as one row for each node, and edge terms that fit.

    Raises:
        UsageError: If the edge terms have other dimensions.
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
    if terms[0].numel() != rows.shape[1]:
        raise UsageError(f"edge_attr must be like x apart from the dimension of nodes, got {describe(edge)}.")
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

    Raises:
        UsageError: If there is not one factor for each edge.
    """
    source, target = as_neighbours(graph, sent.shape[dim], num_dst).edge_index
    messages = sent.index_select(dim, source)
    terms = _stored_terms(edge, messages, dim)
    if terms is not None:
        messages = messages + terms
    messages = messages.relu() + eps
    if weights is not None:
        if weights.shape != source.shape:
            raise UsageError(
                f"there are {len(source)} edges, but a mask of {tuple(weights.shape)}: mask the edges of this graph."
            )
        shape = [1] * messages.dim()
        shape[dim] = -1
        messages = messages * weights.reshape(shape).to(messages.dtype)
    return reduction(messages, target, dim_size=num_dst, dim=dim)
