"""Sums of node features and edge features along the edges of a graph, which are not residual adds.

A graph convolution gathers the features of each edge's source, may add features of the edge, and aggregates the sums at
the targets. Where both operands depend on the edge features, since earlier convolutions have read them, the sum would
look like a residual add.
"""

from __future__ import annotations

import torch

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operators import MOVES, PRODUCTS
from normplace.analysis.recording.ids import NodeId, ValueId

GATHERS = frozenset({"index_select", "gather", "index"})


def message_nodes(graph: Graph) -> set[NodeId]:
    """The nodes that add gathered features to others and whose sums are only aggregated along edges."""
    return {
        NodeId(index)
        for index, node in enumerate(graph.nodes)
        if node.name == "add"
        and any(_is_gathered(graph, value) for value in graph.data_inputs(node))
        and _is_only_aggregated(graph, node)
    }


def _gathers_edges(graph: Graph, node: Node) -> bool:
    """Whether a node gathers rows by integers that do not depend on features, as the sources of edges."""
    if node.name not in GATHERS or not graph.data_inputs(node):
        return False
    indices = [value for value in node.inputs if graph.values[value].dtype in (torch.int32, torch.int64)]
    return bool(indices) and not any(graph.is_routed(value) for value in indices)


def _is_gathered(graph: Graph, value: ValueId) -> bool:
    """Whether only moving operators and linear maps follow the gather of a value."""
    while True:
        node = graph.maker(value)
        if node is None or _gathers_edges(graph, node):
            return node is not None
        factors = graph.factors(node)
        if node.name not in MOVES | PRODUCTS or len(factors) != 1:
            return False
        value = factors[0]


def _is_only_aggregated(graph: Graph, node: Node) -> bool:
    """Whether every path from a sum ends in an aggregation along edges.

    A node's features, to which those of its graph may be added, are gathered again by the next convolution. Features of
    an edge with a residual of their own are added to again.
    """

    def is_end(reader: Node) -> bool:
        is_sum = reader.name == "add" and len(graph.data_inputs(reader)) > 1
        return is_sum or graph.aggregates_edges(reader) or _gathers_edges(graph, reader)

    values = list(graph.computed_from(node.outputs, lambda reader: not is_end(reader)))
    ends = [reader for value in values for reader in graph.readers(value) if is_end(reader)]
    if any(value in graph.tape.outputs for value in values):
        return False
    return bool(ends) and all(map(graph.aggregates_edges, ends))
