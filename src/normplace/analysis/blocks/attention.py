"""Attention inside a branch: which operands are queries, keys and values, and the inner slots that follow."""

from __future__ import annotations

import math
from collections.abc import Iterable

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operand_roles import operand_role, sums_rows
from normplace.analysis.dataflow.operators import (
    ATTENTION,
    CONVOLUTIONS,
    EXPERTS,
    PRODUCTS,
    RECURRENCES,
    ROW_MIXERS,
    SOFTMAXES,
)
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import CallId, NodeId, ValueId
from normplace.analysis.residuals.reachability import Reachability, ResidualAdd

OPERANDS = "qkv"
Operand = tuple[NodeId, ValueId]
"""A node and one of its inputs."""


class AttentionCores:
    """The attention cores of a graph, fused or written out.

    Attributes:
        letters: ``q``, ``k`` or ``v`` for each operand of a core.
        ends: Nodes that return the attended values.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.letters: dict[Operand, str] = {}
        self.ends: set[NodeId] = set()
        for index, node in enumerate(graph.nodes):
            if node.name in ATTENTION:
                node_id = NodeId(index)
                self.letters |= {(node_id, value): letter for value, letter in zip(node.inputs, OPERANDS, strict=False)}
                self.ends.add(node_id)
            elif node.name in SOFTMAXES and graph.is_features(node.inputs[0]):
                self._add_written_out(node)

    def _add_written_out(self, softmax: Node) -> None:
        """Add the core of two products around a softmax."""
        shape = self.graph.values[softmax.inputs[0]].shape
        heads = shape[-3] if len(shape) > 3 else 0
        scores = self._nearest_product(softmax.inputs[0], heads, forward=False)
        gathered = self._nearest_product(softmax.outputs[0], heads, forward=True)
        if scores is None or gathered is None:
            return
        query, key = self.graph.factors(self.graph.nodes[scores])[:2]
        weights = self._derived(softmax.outputs[0], heads)
        self.letters |= {(scores, query): "q", (scores, key): "k"}
        self.letters |= {(gathered, value): "v" for value in self.graph.nodes[gathered].inputs if value not in weights}
        self.ends.add(gathered)

    def _nearest_product(self, value: ValueId, heads: int, forward: bool) -> NodeId | None:
        """The nearest product of features with features after or before a value, with no other barrier between."""
        queue, seen = [value], set()
        while queue:
            value = queue.pop(0)
            neighbours = self.graph.consumers.get(value, []) if forward else [self.graph.producer.get(value)]
            for node_id in neighbours:
                if node_id is None or node_id in seen:
                    continue
                seen.add(node_id)
                node = self.graph.nodes[node_id]
                if node.name in PRODUCTS and len(self.graph.factors(node)) >= 2:
                    return node_id
                if not self._mixes_features(node, heads):
                    queue += node.outputs if forward else self.graph.data_inputs(node)
        return None

    def _mixes_features(self, node: Node, heads: int) -> bool:
        """Whether a node is a barrier other than a map of attention weights over the heads, as of talking heads."""
        if not self.graph.is_barrier(node):
            return node.name in PRODUCTS
        if node.name not in PRODUCTS | CONVOLUTIONS:
            return True
        shapes = [self.graph.values[value].shape for value in node.inputs if self.graph.is_weight(value)]
        return not any(shape[:2] == (heads, heads) and math.prod(shape) == heads**2 for shape in shapes)

    def _derived(self, value: ValueId, heads: int = 0) -> set[ValueId]:
        """A value and everything computed from it up to the next barrier."""

        def passes(node: Node) -> bool:
            return not self.graph.is_barrier(node) or not self._mixes_features(node, heads)

        return set(self.graph.computed_from([value], passes))

    def kind_of(self, region: set[NodeId], norms: Iterable[Norm] = ()) -> str:
        """The kind of a branch: attention, recurrence, convolution, experts, graph convolution, mixer or mlp."""
        names = {self.graph.nodes[node_id].name for node_id in region}
        if region & self.ends:
            return "attention"
        if names & RECURRENCES or any(self._is_recurrent(self.graph.nodes[node_id].call) for node_id in region):
            return "recurrence"
        if names & CONVOLUTIONS:
            return "convolution"
        if names & EXPERTS:
            return "experts"
        if any(self.graph.aggregates_edges(self.graph.nodes[node_id]) for node_id in region):
            return "graph convolution"
        mixes = self._mixes_rows(region) or any(
            norm.erases_scale and sums_rows(self.graph, norm.output, norm.axis, region) for norm in norms
        )
        return "mixer" if mixes else "experts" if "argmax" in names else "mlp"

    def _is_recurrent(self, call: CallId) -> bool:
        return call >= 0 and self.graph.tape.calls[call].recurrent

    def _mixes_rows(self, region: Iterable[NodeId]) -> bool:
        nodes = [self.graph.nodes[node_id] for node_id in region]
        if any(node.name in ROW_MIXERS and any(map(self.graph.is_features, node.outputs)) for node in nodes):
            return True
        return any(node.name in PRODUCTS and not node.squares and len(self.graph.factors(node)) >= 2 for node in nodes)

    def is_unclear(self, norm: Norm) -> bool:
        """Whether a product of features with features reads a norm, but not as queries, keys or values."""
        reading = self.barriers_after(norm.output)
        nodes = [self.graph.nodes[node_id] for node_id, _ in reading]
        paired = any(node.name in PRODUCTS and len(self.graph.factors(node)) > 1 for node in nodes)
        return paired and not self.letters_of(reading) and not operand_role(self.graph, norm.output)

    def operand(self, norm: Norm, region: set[NodeId]) -> str:
        """The operand that attention in a region reads a norm as: q, k or v; empty if none."""
        reading = self.barriers_after(norm.output)
        if not any(node_id in region for node_id, _ in reading):
            return ""
        return self.letters_of(reading) or operand_role(self.graph, norm.output)

    def inner_slot(self, norm: Norm, region: set[NodeId], add: ResidualAdd, reachability: Reachability) -> str:
        """The slot of a norm inside a branch, without ``inner.``."""
        reading = self.barriers_after(norm.output)
        role = self.letters_of(reading) or operand_role(self.graph, norm.output)
        if role:
            return role
        if self.ends.intersection(self.graph.barriers_before(norm.input)):
            return "pre-output"
        products = [self.graph.nodes[node_id] for node_id, _ in reading]
        products = [node for node in products if node.name in PRODUCTS]
        latent = self.letters_of(operand for node in products for operand in self.barriers_after(node.outputs[0]))
        # Keys are less certain: a product with maps that a hypernetwork returns looks like one with keys.
        if not latent and any(operand_role(self.graph, node.outputs[0]) == "q" for node in products):
            latent = "q"
        if latent:
            return f"{latent}-latent"
        last = any(add.branch in self._derived(value) for node in products for value in node.outputs)
        return "pre-output" if last and self._mixes_rows(self._around(norm, region, reachability)) else "mid"

    def _around(self, norm: Norm, region: set[NodeId], reachability: Reachability) -> set[NodeId]:
        """The nodes of a branch on the paths into a norm and out of it."""
        around = {
            node_id
            for node_id in region
            if any(reachability.comes_from(value, norm.output) for value in self.graph.nodes[node_id].outputs)
        }
        queue = [norm.input]
        while queue:
            value = queue.pop()
            node_id = self.graph.producer.get(value)
            if reachability.bit.get(value, 0) & reachability.sums:
                continue  # the branch reads another stream
            if node_id is not None and node_id in region and node_id not in around:
                around.add(node_id)
                queue += self.graph.nodes[node_id].inputs
        return around

    def letters_of(self, operands: Iterable[Operand]) -> str:
        """The letters of operands of attention, in the order q, k, v."""
        letters = {self.letters[operand] for operand in operands if operand in self.letters}
        return "".join(letter for letter in OPERANDS if letter in letters)

    def barriers_after(self, value: ValueId) -> list[Operand]:
        """The first barriers on every path from a value, each with the input it reads."""
        graph = self.graph
        return [
            (node_id, before)
            for before in graph.computed_from([value], lambda node: not graph.is_barrier(node))
            for node_id in graph.consumers.get(before, ())
            if graph.is_barrier(graph.nodes[node_id])
        ]
