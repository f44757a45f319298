"""Questions about the syntax tree of a method."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from normplace.edit.code.recompile import undecorated
from normplace.edit.code.rewrite import Position

Parents = dict[ast.AST, ast.AST]
"""The node that contains each node."""


def parents_of(tree: ast.AST) -> Parents:
    """The parent of every node of a tree."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def ancestors(node: ast.AST, parents: Parents) -> list[ast.AST]:
    """The nodes that contain a node, nearest first."""
    containing = []
    while node in parents:
        node = parents[node]
        containing.append(node)
    return containing


def statement_of(node: ast.AST, parents: Parents) -> ast.stmt:
    """The statement that contains a node."""
    while not isinstance(node, ast.stmt):
        node = parents[node]
    return node


def block_of(parent: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which a statement is."""
    for _, value in ast.iter_fields(parent):
        if isinstance(value, list) and statement in value:
            return value
    return [statement]


def attribute_path(node: ast.AST, root: str) -> str | None:
    """The dotted name of an attribute of ``root``, with constant indices; None for other expressions."""
    if isinstance(node, ast.Name):
        return "" if node.id == root else None
    if isinstance(node, ast.Attribute):
        base, name = attribute_path(node.value, root), node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base, name = attribute_path(node.value, root), str(node.slice.value)
    else:
        return None
    return None if base is None else f"{base}.{name}".lstrip(".")


def position_in(node: ast.expr | ast.stmt) -> Position:
    """The position of an expression or statement in the source."""
    return node.lineno, node.end_lineno or node.lineno, node.col_offset, node.end_col_offset or 0


def resolve_global(node: ast.expr, function: FunctionType) -> Any:
    """What a dotted name of global variables in a function refers to; None for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    value = undecorated(function).__globals__.get(node.id) if isinstance(node, ast.Name) else None
    for name in reversed(names):
        value = getattr(value, name, None)
    return value


def replace_node(parent: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Put a node in the place of another."""
    for field, value in ast.iter_fields(parent):
        if value is old:
            setattr(parent, field, new)
        elif isinstance(value, list) and old in value:
            value[value.index(old)] = new
