"""Sums of attention scores, which are not streams even if a bias or earlier scores pass from layer to layer."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operators import PRODUCTS, SOFTMAXES
from normplace.analysis.recording.ids import NodeId, ValueId


def score_nodes(graph: Graph) -> set[NodeId]:
    """The nodes between a product of features with features and the softmax that turns it into attention weights."""
    scores: set[NodeId] = set()
    for index, node in enumerate(graph.nodes):
        if node.name in SOFTMAXES and graph.is_features(node.inputs[0]):
            nodes = _after_products(graph, _upstream(graph, NodeId(index), scores), scores)
            if nodes and _weighs_features(graph, node):
                scores |= nodes
    return scores


def _upstream(graph: Graph, softmax: NodeId, known: set[NodeId]) -> list[NodeId]:
    """The nodes before a softmax, back to the nearest barriers and to known score nodes, in order."""
    seen: set[NodeId] = set()
    queue = [softmax]
    while queue:
        for value in graph.data_inputs(graph.nodes[queue.pop()]):
            node_id = graph.producer.get(value)
            if node_id is None or node_id in seen:
                continue
            seen.add(node_id)
            if node_id not in known and not graph.is_barrier(graph.nodes[node_id]):
                queue.append(node_id)
    return sorted(seen)


def _after_products(graph: Graph, nodes: Sequence[NodeId], known: set[NodeId]) -> set[NodeId]:
    """Those of the nodes that come after a product of features with features."""
    scores: set[ValueId] = set()
    after: set[NodeId] = set()
    for node_id in nodes:
        node = graph.nodes[node_id]
        reads_scores = bool(scores.intersection(node.inputs))
        if reads_scores:
            after.add(node_id)
        if reads_scores or node_id in known or _multiplies_features(graph, node):
            scores.update(node.outputs)
    return after


def _weighs_features(graph: Graph, softmax: Node) -> bool:
    """Whether a product with features reads the output of a softmax."""
    values = graph.computed_from(softmax.outputs, lambda node: not graph.is_barrier(node))
    return any(_multiplies_features(graph, node) for value in values for node in graph.readers(value))


def _multiplies_features(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies features with features."""
    return node.name in PRODUCTS and len(graph.factors(node)) > 1
