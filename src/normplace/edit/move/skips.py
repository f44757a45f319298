"""Find the expressions that carry the skips of residual blocks into their sums."""

from __future__ import annotations

import ast
from functools import cached_property

from normplace.analysis.recording.ids import BlockIndex, ValueId
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.edit.code.expressions import operands_of, record_expressions
from normplace.edit.code.recompile import definition_of
from normplace.edit.code.rewrite import Position
from normplace.edit.code.syntax import position_in
from normplace.edit.model.model_map import ModelMap, SumRef
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError


class SkipFinder:
    """Finds the operand of each residual sum that is the skip."""

    def __init__(self, model_map: ModelMap, arguments: Arguments) -> None:
        self.model_map, self.arguments = model_map, arguments

    def find(self, block: BlockIndex) -> SumRef:
        """The skip of a block, as an operand of the sum.

        Raises:
            UsageError: If it is not an expression in a method of the module that adds.
        """
        add, owner = self.model_map.analysis.adds_of(block)[0], self.model_map.owner(block)
        total = self.model_map.expression_of(add.node, owner)
        if isinstance(total, str):
            raise self._refusal(block, total)
        for operand in self._operands(total):
            if self._is_skip(operand, total, add):
                return SumRef(owner, total.method, position_in(operand), total.evaluation, total.evaluations)
        raise self._refusal(block, "no operand of the sum has its value: write the block as x + branch(x)")

    def _operands(self, total: SumRef) -> list[ast.expr]:
        """The operands of a sum, or the arguments of the call that computes it."""
        function = getattr(type(self.model_map.model.get_submodule(total.module)), total.method)
        for node in ast.walk(definition_of(function)):
            if isinstance(node, ast.AugAssign) and position_in(node) == total.position:
                return [node.target, node.value]
            if isinstance(node, ast.BinOp | ast.Call) and position_in(node) == total.position:
                return operands_of(node)
        return []

    def _is_skip(self, operand: ast.expr, total: SumRef, add: ResidualAdd) -> bool:
        if isinstance(getattr(operand, "ctx", None), ast.Store):  # the target of x += branch(x)
            return self.model_map.analysis.graph.nodes[add.node].inputs[0] == add.skip
        key = total.module, total.method, position_in(operand)
        return add.skip in self._recorded.get(key, ())

    @cached_property
    def _recorded(self) -> dict[tuple[str, str, Position], list[ValueId]]:
        """The values of the expressions in the methods of all modules that add."""
        owners = dict.fromkeys(block.module for block in self.model_map.analysis.blocks)
        recorded = record_expressions(self.model_map.analysis, self.arguments, owners)
        return {(ref.module, ref.method, ref.position): values for ref, values in recorded.items()}

    def _refusal(self, block: BlockIndex, reason: str) -> UsageError:
        return UsageError(f"cannot scale the skip of block {self.model_map.label(block)}, because {reason}.")
