"""Rewrite a method so that chosen sums are computed together with their norms.

``a + b`` becomes ``self.normplace_sums[0](a, b)``, and ``a += b`` an assignment of the same with ``in_place=True``.
Where the sum computes the norm of the branch's output too, the call of that norm is replaced by its argument. This is
done only if no other code can read the result of the norm: the call is an operand of the sum, or is assigned to a
variable that only the sum reads. In the same way a gate of the branch becomes an argument: ``a + g * b`` becomes
``self.normplace_sums[0](a, g, b)``.

A sum that computes the norm that reads it and the modulation of that norm also receives the scale and the shift. The
modulation itself, ``norm(a) * (1 + scale) + shift``, is evaluated only if its result is not known:
``known if (known := self.normplace_modulations[0](a, scale, shift)) is not None else norm(a) * (1 + scale) + shift``.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import nn

from normplace.edit.code.instance_method import InstanceMethod
from normplace.edit.code.recompile import definition_of, recompile
from normplace.edit.code.rewrite import Position
from normplace.edit.code.syntax import (
    ancestors,
    attribute_path,
    block_of,
    parents_of,
    position_in,
    replace_node,
    statement_of,
)
from normplace.edit.fuse.gates import MODULATIONS
from normplace.edit.fuse.modulation import ModulationEdit, find_modulation, require_early
from normplace.edit.fuse.runtime import SUMS
from normplace.errors import UsageError


@dataclass(frozen=True)
class SumEdit:
    """One sum to fuse.

    Attributes:
        position: Its position in the source.
        index: The index of its :class:`~normplace.edit.fuse.runtime.FusedSum` in the module's list.
        out_norm: The output norm whose call is left out, relative to the module; None if there is none.
        is_gated: Whether one operand is a product that is computed with the sum.
        modulation: The modulation of the next norm that is computed with the sum; None if there is none.
        in_helper: Whether a function that the method calls computes the sum, see :mod:`normplace.edit.fuse.helpers`.
    """

    position: Position
    index: int
    out_norm: str | None
    is_gated: bool = False
    modulation: ModulationEdit | None = None
    in_helper: bool = False


FusionEdit = SumEdit | ModulationEdit
KNOWN = "normplace_known"
"""The variable of a rewritten method for a modulation that is known."""


class FusedMethod(InstanceMethod):
    """A method of one module instance with fused sums."""

    def __init__(self, module: nn.Module, method: str, edits: tuple[FusionEdit, ...]) -> None:
        super().__init__(module, method, fuse_sums(getattr(type(module), method), edits))
        self.edits = edits

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the rewritten method, or the original one after ``unfuse``, if a wrapper still calls this one."""
        is_fused = hasattr(self.module, SUMS) or hasattr(self.module, MODULATIONS)
        function = self.function if is_fused else getattr(type(self.module), self.method)
        return function(self.module, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedMethod, (self.module, self.method, self.edits)


@lru_cache(maxsize=256)  # the layers of a stack share a method
def fuse_sums(function: FunctionType, edits: tuple[FusionEdit, ...]) -> FunctionType:
    """Rewrite sums and modulations of a method.

    Raises:
        UsageError: If one cannot be rewritten, with the reason.
    """
    tree = definition_of(function)
    for edit in edits:
        if isinstance(edit, SumEdit):
            _SumFuser(tree, edit).run()
    for edit in edits:
        if isinstance(edit, ModulationEdit):
            _fuse_modulation(tree, edit)
    return recompile(function, tree)


def _fuse_modulation(tree: ast.FunctionDef, edit: ModulationEdit) -> None:
    """Rewrite one modulation in the syntax tree of a method."""
    code = find_modulation(tree, edit)
    arguments = [copy.deepcopy(part) for part in (code.x, code.scale, code.shift)]
    source = f"{KNOWN} if ({KNOWN} := {tree.args.args[0].arg}.{MODULATIONS}[{edit.index}]()) is not None else None"
    new = ast.parse(source, mode="eval").body
    assert isinstance(new, ast.IfExp)
    call = next(node for node in ast.walk(new.test) if isinstance(node, ast.Call))
    call.args, new.orelse = list(arguments), code.node
    parent = parents_of(tree)[code.node]
    replace_node(parent, code.node, ast.copy_location(new, code.node))


class _SumFuser:
    """Rewrites one sum in the syntax tree of a method."""

    def __init__(self, tree: ast.FunctionDef, edit: SumEdit) -> None:
        self.tree, self.edit = tree, edit
        self.instance = tree.args.args[0].arg
        self.parents = parents_of(tree)

    def run(self) -> None:
        """Rewrite the sum.

        Raises:
            UsageError: If it is not written as a sum of two operands, or its output norm cannot be left out.
        """
        node = self._sum()
        function = ast.parse(f"{self.instance}.{SUMS}[{self.edit.index}]", mode="eval").body
        if self.edit.in_helper and isinstance(node, ast.Call):
            node.func = ast.copy_location(ast.Attribute(function, "in_helper", ast.Load()), node.func)
            return
        operands = _operands(node)
        if operands is None:
            if isinstance(node, ast.Call):
                raise UsageError("the sum is computed by a function that the method calls")
            raise UsageError("the sum is not written as a + b")
        if self.edit.out_norm is not None:
            call = self._output_norm(node, operands)
            operands = [call.args[0] if operand is call else operand for operand in operands]
            if call in self.parents and self.parents[call] is not node:
                replace_node(self.parents[call], call, call.args[0])
        keywords = self._factors(node)
        if self.edit.is_gated:
            operands = self._with_gate(node, operands)
        new = ast.copy_location(ast.Call(function, operands, keywords), node)
        if isinstance(node, ast.AugAssign):
            new.keywords.append(ast.keyword("in_place", ast.Constant(True)))
            replace_node(self.parents[node], node, ast.copy_location(ast.Assign([node.target], new), node))
        else:
            replace_node(self.parents[node], node, new)

    def _factors(self, node: ast.AST) -> list[ast.keyword]:
        """The scale and the shift of the modulation that the sum computes, as arguments."""
        if self.edit.modulation is None:
            return []
        code = find_modulation(self.tree, self.edit.modulation)
        require_early(self.tree, node, code)
        return [ast.keyword(name, copy.deepcopy(getattr(code, name))) for name in ("scale", "shift")]

    def _with_gate(self, node: ast.AST, operands: list[ast.expr]) -> list[ast.expr]:
        """The operands with the two factors of the product in its place."""
        for index, operand in enumerate(operands):
            factors = _factors_of(operand)
            if factors is None and isinstance(operand, ast.Name):
                value = self._assigned_value(node, operand)
                factors = None if value is None else _factors_of(value)
                if value is not None and factors is not None:
                    replace_node(self.parents[value], value, ast.copy_location(ast.Tuple(factors, ast.Load()), value))
                    factors = [ast.Starred(operand, ast.Load())]
            if factors is not None:
                return [*operands[:index], *factors, *operands[index + 1 :]]
        raise UsageError("other code may read the gated branch")

    def _sum(self) -> ast.AST:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.BinOp | ast.Call | ast.AugAssign) and position_in(node) == self.edit.position:
                return node
        raise UsageError("the sum is not in the source of its method")

    def _output_norm(self, node: ast.AST, operands: list[ast.expr]) -> ast.Call:
        """The call of the output norm whose result only the sum reads."""
        for operand in operands:
            if self._is_norm_call(operand):
                return operand  # type: ignore[return-value]
            if isinstance(operand, ast.Name):
                value = self._assigned_value(node, operand)
                if self._is_norm_call(value):
                    return value  # type: ignore[return-value]
        raise UsageError("other code may read the result of its output norm")

    def _is_norm_call(self, node: ast.AST | None) -> bool:
        return (
            isinstance(node, ast.Call)
            and len(node.args) == 1
            and not node.keywords
            and not isinstance(node.args[0], ast.Starred)
            and attribute_path(node.func, self.instance) == self.edit.out_norm
        )

    def _assigned_value(self, node: ast.AST, operand: ast.Name) -> ast.expr | None:
        """The expression that an earlier statement assigns to the operand's variable, for the sum alone."""
        statement = statement_of(node, self.parents)
        block = block_of(self.parents[statement], statement)
        for earlier in reversed(block[: block.index(statement)]):
            if not _names(earlier, operand.id):
                continue
            if not isinstance(earlier, ast.Assign) or not _assigns_only(earlier, operand.id):
                return None
            return earlier.value if self._is_only_reader(node, statement, operand) else None
        return None

    def _is_only_reader(self, node: ast.AST, statement: ast.stmt, operand: ast.Name) -> bool:
        """Whether no code but the sum reads a variable after its assignment in the same block."""
        reads = [name for name in _names(statement, operand.id) if isinstance(name.ctx, ast.Load)]
        if isinstance(node, ast.AugAssign) and _names(node.target, operand.id):
            return not reads  # the sum replaces the variable, which it reads as its target
        here = operand.lineno, operand.col_offset
        later = [
            name
            for name in _names(self.tree, operand.id)
            if isinstance(name.ctx, ast.Load) and (name.lineno, name.col_offset) > here
        ]
        in_loop = any(isinstance(parent, ast.For | ast.While) for parent in ancestors(statement, self.parents))
        is_replaced = _assigns_only(statement, operand.id) or self._is_overwritten(statement, operand.id)
        return reads == [operand] and (is_replaced or not (later or in_loop))

    def _is_overwritten(self, statement: ast.stmt, name: str) -> bool:
        """Whether the next statement of the same block that uses a variable assigns a new value to it."""
        block = block_of(self.parents[statement], statement)
        for later in block[block.index(statement) + 1 :]:
            names = _names(later, name)
            if names:
                is_read = any(isinstance(each.ctx, ast.Load) for each in names)
                return not is_read and _assigns_only(later, name)
        return False


def _operands(node: ast.AST) -> list[ast.expr] | None:
    """The two operands of a sum; None if it is written in another way."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
        return [ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target), node.value]
    if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        return list(node.args) if attribute_path(node.func, "torch") == "add" else None
    return None


def _factors_of(node: ast.AST) -> list[ast.expr] | None:
    """The two factors of a product; None for other expressions."""
    return [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else None


def _names(node: ast.AST, name: str) -> list[ast.Name]:
    return [child for child in ast.walk(node) if isinstance(child, ast.Name) and child.id == name]


def _assigns_only(statement: ast.stmt, name: str) -> bool:
    """Whether a statement assigns to one variable."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name
