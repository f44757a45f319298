"""Sums of attention scores, which are not streams even where a bias or earlier scores pass from layer to layer."""

from __future__ import annotations

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operators import PRODUCTS, SOFTMAXES


def score_nodes(graph: Graph) -> set[int]:
    """The nodes between a product of features with features and the softmax that makes attention weights of it."""
    found: set[int] = set()
    for at, node in enumerate(graph.nodes):
        if node.name in SOFTMAXES and graph.is_features(node.inputs[0]):
            nodes = _made_of_products(graph, _upstream(graph, at, found), found)
            if nodes and _gathers(graph, node):
                found |= nodes
    return found


def _upstream(graph: Graph, softmax: int, known: set[int]) -> list[int]:
    """The nodes that lead to a softmax, back to the nearest barriers and to known score nodes, in order."""
    seen: set[int] = set()
    queue = [softmax]
    while queue:
        for value in graph.data_inputs(graph.nodes[queue.pop()]):
            at = graph.producer.get(value)
            if at is None or at in seen:
                continue
            seen.add(at)
            if at not in known and not graph.is_barrier(graph.nodes[at]):
                queue.append(at)
    return sorted(seen)


def _made_of_products(graph: Graph, nodes: list[int], known: set[int]) -> set[int]:
    """Those of the nodes behind a product of features with features."""
    scores: set[int] = set()
    found: set[int] = set()
    for at in nodes:
        node = graph.nodes[at]
        behind = bool(scores.intersection(node.inputs))
        if behind:
            found.add(at)
        if behind or at in known or _pairs(graph, node):
            scores.update(node.outputs)
    return found


def _gathers(graph: Graph, softmax: Node) -> bool:
    """Whether a product with features reads the weights that a softmax returns."""
    seen: set[int] = set()
    queue = list(softmax.outputs)
    while queue:
        for at in graph.consumers.get(queue.pop(), ()):
            node = graph.nodes[at]
            if _pairs(graph, node):
                return True
            if at not in seen and not graph.is_barrier(node):
                seen.add(at)
                queue += node.outputs
    return False


def _pairs(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies features with features."""
    return node.name in PRODUCTS and len(graph.factors(node)) > 1
