"""Rewrite a method so that chosen sums pass through a module.

A residual add is an expression in a module's code, which no hook can reach. The rewrite wraps that expression in the
syntax tree of the method: ``a + b`` becomes ``self.placed["name"](a + b)``. The method is compiled again with its
globals, defaults, closure and line numbers, so it can be traced, compiled and debugged like the original.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from normplace.edit.code.instance_method import InstanceMethod
from normplace.edit.code.recompile import definition_of, recompile, undecorated
from normplace.errors import UsageError

PLACED = "placed"
"""The child of a module that holds the modules an edit added to it."""
Position = tuple[int, int, int, int]
"""First line, last line, first column and last column of an expression."""
PlacedNames = tuple[str | None, ...]
"""For each evaluation of an expression in one call, the placed module that its value passes through."""


def position_of(code: CodeType, offset: int) -> Position | None:
    """The position of the expression that an instruction belongs to; None if the code has no positions."""
    line, last_line, column, last_column = list(code.co_positions())[offset // 2]
    if line is None or last_line is None or column is None or last_column is None:
        return None
    return line, last_line, column, last_column


def method_of(module: nn.Module, code: CodeType) -> str | None:
    """The name of the module's method that has this code, rewritten or not; None if there is no such method."""
    for name, value in vars(module).items():
        if isinstance(value, RewrittenMethod) and _is_same_definition(undecorated(value.function).__code__, code):
            return name
    for base in type(module).__mro__:
        for name, value in vars(base).items():
            is_method = isinstance(value, FunctionType) and getattr(type(module), name) is value
            if is_method and _is_same_definition(undecorated(value).__code__, code):
                return name
    return None


def _is_same_definition(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects come from the same definition, rewritten or not."""
    return (one.co_filename, one.co_firstlineno, one.co_name) == (
        other.co_filename, other.co_firstlineno, other.co_name,
    )  # fmt: skip


class RewrittenMethod(InstanceMethod):
    """A method of one module instance with some sums wrapped."""

    def __init__(self, module: nn.Module, method: str, sums: Mapping[Position, PlacedNames]) -> None:
        super().__init__(module, method, rewrite(getattr(type(module), method), tuple(sums.items())))
        self.sums = dict(sums)

    def __reduce__(self) -> tuple[Any, ...]:
        return RewrittenMethod, (self.module, self.method, self.sums)


def wrap_sum(owner: nn.Module, method: str, position: Position, name: str, evaluation: int, evaluations: int) -> None:
    """Pass one evaluation of a sum in a module's method through a placed module.

    Args:
        owner: The module.
        method: The name of its method.
        position: The position of the sum in the source.
        name: The name of the placed module.
        evaluation: Which evaluation of the sum in one call of the method, counted from 0.
        evaluations: How often one call evaluates the sum.

    Raises:
        UsageError: If the method cannot be rewritten.
    """
    rewritten = vars(owner).get(method)
    sums = dict(rewritten.sums) if isinstance(rewritten, RewrittenMethod) else {}
    names = list(sums.get(position, (None,) * evaluations))
    names[evaluation] = name
    sums[position] = tuple(names)
    setattr(owner, method, RewrittenMethod(owner, method, sums))


def unwrap_sums(owner: nn.Module, name: str) -> None:
    """Remove a placed module from the rewritten methods of its owner."""
    for method, rewritten in list(vars(owner).items()):
        if isinstance(rewritten, RewrittenMethod):
            sums = {
                position: tuple(None if other == name else other for other in names)
                for position, names in rewritten.sums.items()
            }
            sums = {position: names for position, names in sums.items() if any(names)}
            delattr(owner, method)
            if sums:
                setattr(owner, method, RewrittenMethod(owner, method, sums))


@lru_cache(maxsize=256)  # the layers of a stack share a method
def rewrite(function: FunctionType, sums: tuple[tuple[Position, PlacedNames], ...]) -> FunctionType:
    """Wrap the expressions at given positions of a method.

    Raises:
        UsageError: If the source cannot be read, or has no expression at one of the positions.
    """
    tree = definition_of(function)
    if wrap_expressions(tree, dict(sums)):
        raise UsageError(
            f"cannot find the residual add of {function.__qualname__} in its source: write it in the method as a sum."
        )
    return recompile(function, tree)


def wrap_expressions(tree: ast.FunctionDef, sums: Mapping[Position, PlacedNames]) -> dict[Position, PlacedNames]:
    """Wrap the expressions at given positions in the tree of a method, and return those that were not found."""
    wrapper = _ExpressionWrapper(tree.args.args[0].arg, dict(sums))
    tree.body = [wrapper.visit(statement) for statement in tree.body]
    tree.body[:0] = wrapper.iterators()
    return wrapper.remaining


class _ExpressionWrapper(ast.NodeTransformer):
    """Wraps the expressions at given positions.

    Attributes:
        remaining: The positions that were not found yet.
    """

    def __init__(self, instance: str, sums: dict[Position, PlacedNames]) -> None:
        self.instance, self.remaining = instance, sums
        self._repeated: dict[str, PlacedNames] = {}

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        if isinstance(node, ast.AugAssign):
            return self._assigned(node)
        if not isinstance(node, ast.BinOp | ast.Call | ast.Name | ast.Attribute | ast.Subscript):
            return node
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return node
        names = self._names_at(node)
        return node if names is None else ast.copy_location(self._wrapped(names, node), node)

    def _assigned(self, node: ast.AugAssign) -> ast.AugAssign | ast.Assign:
        """``x += branch`` as ``x = placed(placed(x) + branch)``, with those of the two calls that are requested."""
        names, names_of_target = self._names_at(node), self._names_at(node.target)
        if names is None and names_of_target is None:
            return node
        operand = copy.copy(node.target)
        operand.ctx = ast.Load()
        left = operand if names_of_target is None else self._wrapped(names_of_target, operand)
        total = ast.copy_location(ast.BinOp(ast.copy_location(left, node), node.op, node.value), node)
        value = total if names is None else ast.copy_location(self._wrapped(names, total), node)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def _names_at(self, node: ast.expr | ast.stmt) -> PlacedNames | None:
        """The placed modules of an expression; None also if it was added to the tree, so is not in the source."""
        if not hasattr(node, "lineno"):
            return None
        last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.remaining.pop((node.lineno, last_line, node.col_offset, last_column), None)

    def _wrapped(self, names: PlacedNames, value: ast.expr) -> ast.Call:
        if len(names) == 1:
            function = self._placed(names[0])
        else:
            iterator = f"_sums_{len(self._repeated)}"
            self._repeated[iterator] = names
            function = _expression(f"next({iterator})")
        return ast.Call(function, [value], [])

    def _placed(self, name: str | None) -> ast.expr:
        return _expression("(lambda value: value)" if name is None else f"{self.instance}.{PLACED}[{name!r}]")

    def iterators(self) -> list[ast.stmt]:
        """The statements that create an iterator over the placed modules of each sum in a loop."""
        statements: list[ast.stmt] = []
        for iterator, names in self._repeated.items():
            modules = ast.Tuple([self._placed(name) for name in names], ast.Load())
            call = ast.Call(_expression("iter"), [modules], [])
            statements.append(ast.Assign([ast.Name(iterator, ast.Store())], call))
        return statements


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body
