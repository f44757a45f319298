"""Rewrite a method so that chosen sums are computed together with their norms.

``a + b`` becomes ``self.normplace_sums[0](a, b)``, and ``a += b`` an assignment of the same with ``in_place=True``.
Where the sum computes the norm of the branch's output too, the call of that norm is replaced by its argument. This is
done only if no other code can read the result of the norm: the call is an operand of the sum, or is assigned to a
variable that only the sum reads.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import nn

from normplace.edit.fuse_runtime import SUMS
from normplace.edit.recompile import definition_of, recompile
from normplace.edit.rewrite import Position
from normplace.errors import UsageError


@dataclass(frozen=True)
class SumEdit:
    """One sum to fuse.

    Attributes:
        position: Its position in the source.
        index: The index of its :class:`~normplace.edit.fuse_runtime.FusedSum` in the module's list.
        out_norm: The output norm whose call is left out, relative to the module; None if there is none.
    """

    position: Position
    index: int
    out_norm: str | None


class FusedMethod:
    """A method of one module instance with fused sums; as an instance attribute it hides the class's method.

    Args:
        module: The module.
        method: The method's name.
        edits: The sums.
    """

    def __init__(self, module: nn.Module, method: str, edits: tuple[SumEdit, ...]) -> None:
        self.module, self.method, self.edits = module, method, edits
        original = getattr(type(module), method)
        self.function = fuse_sums(original, edits)
        parameters = list(inspect.signature(original).parameters.values())[1:]
        self.__signature__ = inspect.signature(original).replace(parameters=parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the rewritten method."""
        return self.function(self.module, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedMethod, (self.module, self.method, self.edits)


@lru_cache(maxsize=256)  # the layers of a stack share a method
def fuse_sums(function: FunctionType, edits: tuple[SumEdit, ...]) -> FunctionType:
    """Rewrite sums of a method.

    Raises:
        UsageError: If a sum cannot be rewritten, with the reason.
    """
    tree = definition_of(function)
    for edit in edits:
        _SumFuser(tree, edit).run()
    return recompile(function, tree)


class _SumFuser:
    """Rewrites one sum in the syntax tree of a method."""

    def __init__(self, tree: ast.FunctionDef, edit: SumEdit) -> None:
        self.tree, self.edit = tree, edit
        self.instance = tree.args.args[0].arg
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def run(self) -> None:
        """Rewrite the sum.

        Raises:
            UsageError: If it is not written as a sum of two operands, or its output norm cannot be left out.
        """
        node = self._sum()
        operands = _operands(node)
        if operands is None:
            if isinstance(node, ast.Call):
                raise UsageError("the sum is computed by a function that the method calls")
            raise UsageError("the sum is not written as a + b")
        if self.edit.out_norm is not None:
            call = self._output_norm(node, operands)
            operands = [call.args[0] if operand is call else operand for operand in operands]
            if call in self.parents and self.parents[call] is not node:
                _replace(self.parents[call], call, call.args[0])
        function = ast.parse(f"{self.instance}.{SUMS}[{self.edit.index}]", mode="eval").body
        new = ast.copy_location(ast.Call(function, operands, []), node)
        if isinstance(node, ast.AugAssign):
            new.keywords.append(ast.keyword("in_place", ast.Constant(True)))
            _replace(self.parents[node], node, ast.copy_location(ast.Assign([node.target], new), node))
        else:
            _replace(self.parents[node], node, new)

    def _sum(self) -> ast.AST:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.BinOp | ast.Call | ast.AugAssign):
                last = node.end_lineno or node.lineno, node.end_col_offset or 0
                if (node.lineno, last[0], node.col_offset, last[1]) == self.edit.position:
                    return node
        raise UsageError("the sum is not in the source of its method")

    def _output_norm(self, node: ast.AST, operands: list[ast.expr]) -> ast.Call:
        """The call of the output norm whose result only the sum reads."""
        for operand in operands:
            if self._is_norm_call(operand):
                return operand  # type: ignore[return-value]
            if isinstance(operand, ast.Name):
                call = self._assigned_call(node, operand)
                if call is not None:
                    return call
        raise UsageError("other code may read the result of its output norm")

    def _is_norm_call(self, node: ast.AST | None) -> bool:
        return (
            isinstance(node, ast.Call)
            and len(node.args) == 1
            and not node.keywords
            and not isinstance(node.args[0], ast.Starred)
            and _path(node.func, self.instance) == self.edit.out_norm
        )

    def _assigned_call(self, node: ast.AST, operand: ast.Name) -> ast.Call | None:
        """The call of the norm that an earlier statement assigns to the operand's variable, for the sum alone."""
        statement = node
        while not isinstance(statement, ast.stmt):
            statement = self.parents[statement]
        block = _block_of(self.parents[statement], statement)
        index = block.index(statement)
        for earlier in reversed(block[:index]):
            names = _names(earlier, operand.id)
            if not names:
                continue
            is_norm = isinstance(earlier, ast.Assign) and self._is_norm_call(earlier.value)
            if not is_norm or not _assigns_only(earlier, operand.id):
                return None
            assert isinstance(earlier, ast.Assign)
            assert isinstance(earlier.value, ast.Call)
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
        in_loop = any(isinstance(parent, ast.For | ast.While) for parent in self._ancestors(statement))
        return reads == [operand] and (_assigns_only(statement, operand.id) or not (later or in_loop))

    def _ancestors(self, node: ast.AST) -> list[ast.AST]:
        ancestors = []
        while node in self.parents:
            node = self.parents[node]
            ancestors.append(node)
        return ancestors


def _operands(node: ast.AST) -> list[ast.expr] | None:
    """The two operands of a sum; None if it is written in another way."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
        return [ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target), node.value]
    if isinstance(node, ast.Call) and _path(node.func, "torch") == "add" and len(node.args) == 2 and not node.keywords:
        return list(node.args)
    return None


def _path(node: ast.AST, root: str) -> str | None:
    """The dotted name of an attribute of ``root``, with constant indices; None for other expressions."""
    if isinstance(node, ast.Name):
        return "" if node.id == root else None
    if isinstance(node, ast.Attribute):
        base, name = _path(node.value, root), node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base, name = _path(node.value, root), str(node.slice.value)
    else:
        return None
    return None if base is None else f"{base}.{name}".lstrip(".")


def _block_of(parent: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    for _, value in ast.iter_fields(parent):
        if isinstance(value, list) and statement in value:
            return value
    return [statement]


def _names(node: ast.AST, name: str) -> list[ast.Name]:
    return [child for child in ast.walk(node) if isinstance(child, ast.Name) and child.id == name]


def _assigns_only(statement: ast.stmt, name: str) -> bool:
    """Whether a statement assigns to one variable."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _replace(parent: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Put a node in the place of another."""
    for field, value in ast.iter_fields(parent):
        if value is old:
            setattr(parent, field, new)
        elif isinstance(value, list) and old in value:
            value[value.index(old)] = new
