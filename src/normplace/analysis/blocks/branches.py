"""The branches of residual adds: their values, and the modules that return them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.recording.ids import CallId, ValueId
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.analysis.residuals.structure import ResidualStructure

SCALING = MOVES | {"mul", "div"}


class Branches:
    """The branches of the residual adds of one graph."""

    def __init__(self, structure: ResidualStructure) -> None:
        self.structure, self.graph, self.reachability = structure, structure.graph, structure.reachability
        self._returned_by: dict[ValueId, list[CallId]] = {}
        for index, call in enumerate(self.graph.tape.calls):
            for value in call.outputs:
                self._returned_by.setdefault(value, []).append(CallId(index))

    def summands(self, add: ResidualAdd) -> list[ValueId]:
        """The branches that are summed before the sum is added to the skip; often just one."""
        summands: list[ValueId] = []
        queue = [add.branch]
        while queue:
            value = queue.pop(0)
            node = self.graph.maker(self.graph.origin(value))
            parts = self.graph.data_inputs(node) if node is not None and node.name == "add" else []
            from_fork = [
                part for part in parts if self.reachability.mixed.get(part, 0) & self.reachability.bit[add.fork]
            ]
            is_split = len(from_fork) >= 2 and len(from_fork) == len(parts) and self._are_separate(from_fork, add)
            # A graph convolution may add a map of each node's own features; a sum of the block's own code is split.
            if node is not None and is_split and (node.call == add.call or not self._aggregates_edges(value, add)):
                queue += from_fork
            else:
                summands.append(value)
        return summands

    def _aggregates_edges(self, value: ValueId, add: ResidualAdd) -> bool:
        """Whether a value is computed along the edges of a graph."""
        region = self.structure.regions.of(add, value)
        return any(self.graph.aggregates_edges(self.graph.nodes[node]) for node in region)

    def _are_separate(self, values: Sequence[ValueId], add: ResidualAdd) -> bool:
        """Whether values come from different modules and share no product; a sum inside one module is not split."""
        modules = [self.module(value, add.call) for value in values]
        if None in modules or len(set(modules)) < len(modules):
            return False
        common = set.intersection(*(self.structure.regions.of(add, value) for value in values))
        return not any(self.graph.is_barrier(self.graph.nodes[node]) for node in common)

    def module(self, value: ValueId, call: CallId) -> str | None:
        """The outermost module inside ``call`` that returned a value, before its output norm if it has one."""
        calls = self.graph.tape.calls
        values = list(self._unscaled(value))
        norms = [self.structure.norm_of_output[number] for number in values if number in self.structure.norm_of_output]
        if norms:
            before_norm = self.module(self.structure.norms[min(norms)].input, call)
            if before_norm is not None:
                return before_norm
        for returning in sorted({index for number in values for index in self._returned_by.get(number, ())}):
            if call in self.graph.tape.enclosing_calls(calls[returning].parent):
                return calls[returning].path
        return None

    def _unscaled(self, value: ValueId) -> Iterator[ValueId]:
        """A value and what it was before moves and factors, nearest first; of a product, its larger factor."""
        graph = self.graph
        while True:
            yield value
            node = graph.maker(value)
            if node is None or node.name not in SCALING or not node.inputs:
                return
            inputs = graph.data_inputs(node) or list(node.inputs)
            if node.name == "mul":
                inputs.sort(key=lambda number: (-math.prod(graph.values[number].shape), graph.is_gate(number)))
            value = inputs[0]
