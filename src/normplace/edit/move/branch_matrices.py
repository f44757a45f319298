"""The weight matrices of a residual branch: which module holds the last one, and which rows make queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.analysis.dataflow.operators import BIASED_PRODUCTS, CASTS, CONVOLUTIONS, PRODUCTS
from normplace.analysis.recording.ids import BlockIndex, NodeId, ValueId
from normplace.edit.model.model_map import ModelMap, TensorRef, is_outside_tree
from normplace.edit.model.parameter_regions import REPEATABLE, Region, parameter_names, reads_of, repeat_view
from normplace.errors import UsageError


@dataclass(frozen=True)
class BranchMatrix:
    """A part of a parameter that a branch multiplies its features with.

    Attributes:
        name: The parameter's name.
        region: The part.
        output_axis: The axis of the parameter that runs along the results.
        parts: The indices along that axis, by what they make: ``q``, ``k``, ``v``, or empty for anything else.
    """

    name: str
    region: Region
    output_axis: int
    parts: dict[str, Tensor]


class BranchMatrices:
    """Finds the matrices of residual branches."""

    def __init__(self, model_map: ModelMap) -> None:
        self.model_map, self.analysis = model_map, model_map.analysis
        self.graph = model_map.analysis.graph
        self._names = parameter_names(model_map.analysis)

    def last_input(self, block: BlockIndex, branch: int) -> TensorRef:
        """The argument of the module that holds the last matrix of a branch.

        Raises:
            UsageError: If no module multiplies with it.
        """
        _, value = self.analysis.branches_of(block)[branch]
        while (node := self.graph.maker(value)) is not None and not self.graph.is_barrier(node):
            norm = self.analysis.norm_of_output.get(value)
            before = self.graph.scaled(node) if norm is None else self.analysis.norms[norm].input
            if before is None:
                break
            value = before
        calls = self.analysis.tape.calls
        call = None if node is None or node.name not in PRODUCTS else calls[node.call]
        if call is not None and not is_outside_tree(call.path) and len(call.arguments) == 1 and len(call.results) == 1:
            (key, argument), module = next(iter(call.arguments.items())), self.model_map.model.get_submodule(call.path)
            if hasattr(module, "weight") and not any(True for _ in module.children()):
                return TensorRef(call.path, (key,), self.model_map.width(argument))
        raise UsageError(
            f"cannot put a norm before the last matrix of block {self.model_map.label(block)}, because no module "
            "multiplies with it alone: make it an nn.Linear that is called."
        )

    def of(self, block: BlockIndex) -> Iterator[BranchMatrix]:
        """The matrices of the branches of a block.

        Raises:
            UsageError: If a weight is not a matrix, or it is not clear which of its rows make queries and keys.
        """
        for add, value in self.analysis.branches_of(block):
            for node_id in sorted(self.analysis.regions.of(add, value)):
                node = self.graph.nodes[node_id]
                if node.name in CONVOLUTIONS:
                    raise self._refusal(block, f"{self.graph.path(node)!r} is a convolution")
                if node.name in PRODUCTS and (weight := self._weight(node_id)) is not None:
                    yield self._matrix(block, node_id, weight)

    def _weight(self, node_id: NodeId) -> ValueId | None:
        """The operand of a product that is a parameter or a part of one."""
        node = self.graph.nodes[node_id]
        operands = node.inputs[1:3] if node.name in BIASED_PRODUCTS else node.inputs[:2]
        weights = [value for value in operands if self.graph.is_weight(value) and not self.graph.is_data(value)]
        return weights[0] if len(weights) == 1 else None

    def _matrix(self, block: BlockIndex, node_id: NodeId, weight: ValueId) -> BranchMatrix:
        parameter, node = self.graph.origin(weight), self.graph.nodes[node_id]
        name = self._names.get(parameter, "")
        regions = (
            region
            for reading, operand, region in reads_of(self.graph, parameter)
            if (reading, operand) == (node_id, weight)
        )
        region = next(regions, None)
        if not name or region is None or len(self.graph.values[parameter].shape) != 2:
            raise self._refusal(block, f"the weights of {self.graph.path(node)!r} are not a matrix")
        along = 0 if node.name == "linear" else len(self.graph.values[weight].shape) - 1
        axis = region.axes[along]
        if axis is None or node.inputs[-2 if len(node.inputs) > 1 else 0] == weight:
            raise self._refusal(block, f"{self.graph.path(node)!r} reads a view of its weights that is not understood")
        parts = self._parts(node.outputs[0])
        if parts is None:
            raise self._refusal(block, f"it is not clear which part of {name!r} makes queries and keys")
        offset = region.ranges[axis].start
        return BranchMatrix(name, region, axis, {letter: offset + indices for letter, indices in parts.items()})

    def _parts(self, output: ValueId) -> dict[str, Tensor] | None:
        """The features of a product's result, by the operand of attention that they become."""
        shape = self.graph.values[output].shape
        parts: dict[str, list[Tensor]] = {}
        queue: list[tuple[ValueId, Tensor]] = [(output, torch.arange(shape[-1]).expand(shape))]
        attention = self.analysis.attention
        while queue:
            value, features = queue.pop()
            letters = attention.letters_of(attention.barriers_after(value))
            if len(letters) < 2:
                parts.setdefault(letters, []).append(features.unique())
                continue
            for node in self.graph.readers(value):
                if not set(node.outputs) & self.graph.used:
                    continue
                is_bias = node.name == "add" and any(map(self.graph.is_weight, node.inputs))
                if node.name not in CASTS | REPEATABLE and not is_bias:
                    return None
                for position, result in enumerate(node.outputs):
                    views = [features] if is_bias else repeat_view(node, value, position, [features])
                    if views is None:
                        return None
                    queue.append((result, views[0]))
        return {letter: torch.cat(indices).unique() for letter, indices in parts.items()}

    def _refusal(self, block: BlockIndex, reason: str) -> UsageError:
        return UsageError(
            f"cannot draw the published weights of block {self.model_map.label(block)}, because {reason}: pass "
            'init="kept", and draw them yourself.'
        )
