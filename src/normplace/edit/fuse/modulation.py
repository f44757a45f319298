"""Find modulated norms, ``N(x) * (1 + scale) + shift`` as diffusion Transformers have them, in the code of a method.

A modulation is written out, or a call of a function of the norm's result and the two factors. What such a function
computes is identified by its results on random tensors. A sum can compute the modulation of the norm that reads it only
if both factors are known before the sum: they are views of variables that are assigned before it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normplace.edit.code.rewrite import Position
from normplace.edit.code.syntax import (
    ancestors,
    attribute_path,
    block_of,
    parents_of,
    position_in,
    replace_node,
    resolve_global,
    statement_of,
)
from normplace.errors import UsageError

VIEWS = ("unsqueeze", "view", "reshape", "squeeze")
"""Methods of a tensor that a factor may be passed through."""
SAMPLES, BROADCAST = "samples", "broadcast"
"""How a factor applies to rows: ``[batch, width]`` to all tokens of a sample, or by PyTorch's broadcasting."""
LATE = "the scale or shift of the norm is not known before the sum"
"""Why a sum does not compute a modulation."""


@dataclass(frozen=True)
class ModulationEdit:
    """One modulation to compute with its norm.

    Attributes:
        position: The position of the expression in the source.
        index: The index of its :class:`~normplace.edit.fuse.gates.Modulation` in the module's list.
        norm: The name of the norm, relative to the module.
        roles: For a call of a function, the arguments that are the scale and the shift, by position or name.
    """

    position: Position
    index: int
    norm: str
    roles: tuple[int | str, int | str] | None = None


class ModulationCode(NamedTuple):
    """The parts of a modulation in a syntax tree."""

    node: ast.expr
    x: ast.Name
    """What the norm reads."""
    scale: ast.expr
    shift: ast.expr


def find_modulation(tree: ast.FunctionDef, edit: ModulationEdit) -> ModulationCode:
    """The parts of a modulation.

    Raises:
        UsageError: If it is written in another way.
    """
    instance = tree.args.args[0].arg
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.BinOp | ast.Call) and position_in(node) == edit.position:
            _inline_norm(tree, node, edit.norm)
            code = _of_call(node, instance, edit) if isinstance(node, ast.Call) else _written_out(node, instance, edit)
            if code is not None:
                return code
    raise UsageError("the modulation of the norm is not written as norm(x) * (1 + scale) + shift")


def _norm_input(node: ast.AST, instance: str, norm: str) -> ast.Name | None:
    """The variable that a call of the norm reads."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        argument = node.args[0]
        if isinstance(argument, ast.Name) and attribute_path(node.func, instance) == norm:
            return argument
    return None


def _inline_norm(tree: ast.FunctionDef, node: ast.expr, norm: str) -> None:
    """Change ``y = norm(x)`` followed by ``y = y * (1 + scale) + shift`` to one statement."""
    parents = parents_of(tree)
    statement = statement_of(node, parents)
    block = block_of(parents[statement], statement)
    earlier = block[block.index(statement) - 1] if block.index(statement) else None
    if not isinstance(earlier, ast.Assign) or not isinstance(statement, ast.Assign) or statement.value is not node:
        return
    target = earlier.targets[0]
    reads = [child for child in ast.walk(node) if isinstance(child, ast.Name) and ast.dump(child) == _read(target)]
    is_replaced = len(earlier.targets) == 1 and ast.dump(statement.targets[0]) == ast.dump(target)
    if len(reads) == 1 and is_replaced and _norm_input(earlier.value, tree.args.args[0].arg, norm) is not None:
        replace_node(parents[reads[0]], reads[0], earlier.value)
        block.remove(earlier)


def _read(target: ast.expr) -> str:
    """How a read of an assigned variable looks; empty for other targets."""
    return ast.dump(ast.Name(target.id, ast.Load())) if isinstance(target, ast.Name) else ""


def _written_out(node: ast.BinOp, instance: str, edit: ModulationEdit) -> ModulationCode | None:
    if not isinstance(node.op, ast.Add):
        return None
    for product, shift in _either_way(node):
        if not (isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult)):
            continue
        for normed, factor in _either_way(product):
            x, scale = _norm_input(normed, instance, edit.norm), _plus_one(factor)
            if x is not None and scale is not None:
                return ModulationCode(node, x, scale, shift)
    return None


def _either_way(node: ast.BinOp) -> Iterator[tuple[ast.expr, ast.expr]]:
    yield node.left, node.right
    yield node.right, node.left


def _plus_one(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for one, other in _either_way(node):
            if isinstance(one, ast.Constant) and one.value == 1:
                return other
    return None


def _of_call(node: ast.Call, instance: str, edit: ModulationEdit) -> ModulationCode | None:
    arguments = dict(_arguments(node))
    x = next((x for value in arguments.values() if (x := _norm_input(value, instance, edit.norm)) is not None), None)
    if x is None or edit.roles is None:
        return None
    return ModulationCode(node, x, *(arguments[role] for role in edit.roles))


def _arguments(node: ast.Call) -> Iterator[tuple[int | str, ast.expr]]:
    yield from enumerate(node.args)
    for keyword in node.keywords:
        yield keyword.arg or "**", keyword.value


def identify_call(
    tree: ast.FunctionDef, function: FunctionType, edit: ModulationEdit
) -> tuple[ModulationEdit, tuple[str, ...]]:
    """The edit with the roles of the arguments, and how the factors apply to rows.

    Raises:
        UsageError: If the modulation is written in another way, or the function computes something else.
    """
    instance = tree.args.args[0].arg
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Call) and position_in(node) == edit.position:
            _inline_norm(tree, node, edit.norm)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and position_in(node) == edit.position)
    call = next(calls, None)
    if call is None:
        find_modulation(tree, edit)
        return edit, (BROADCAST,)
    arguments = dict(_arguments(call))
    norms = [key for key, value in arguments.items() if _norm_input(value, instance, edit.norm) is not None]
    called = resolve_global(call.func, function)
    if len(arguments) != 3 or len(norms) != 1 or "**" in arguments or not inspect.isfunction(called):
        raise UsageError("the modulation is not a function of the norm, a scale and a shift")
    others = [key for key in arguments if key != norms[0]]
    for scale, shift in itertools.permutations(others):
        styles = tuple(style for style in (SAMPLES, BROADCAST) if _computes(called, norms[0], scale, shift, style))
        if styles:
            return ModulationEdit(edit.position, edit.index, edit.norm, (scale, shift)), styles
    raise UsageError(f"{called.__name__} computes something else than norm * (1 + scale) + shift")


def _computes(function: Callable[..., Any], norm: int | str, scale: int | str, shift: int | str, style: str) -> bool:
    """Whether a function computes the modulation with these roles, with the bits of separate operators in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, 1, 8) if style == BROADCAST else (3, 8)
    for dtype in (torch.float64, torch.bfloat16):
        n, a, b = (torch.randn(size, generator=generator).to(dtype) for size in ((3, 5, 8), shape, shape))
        arguments = {norm: n, scale: a, shift: b}
        positional = [arguments[key] for key in sorted(key for key in arguments if isinstance(key, int))]
        named = {key: value for key, value in arguments.items() if isinstance(key, str)}
        try:
            with torch.no_grad():
                result = function(*positional, **named)
        except (RuntimeError, TypeError, AttributeError, ValueError, IndexError):  # factors of another shape
            return False
        expected = n * (1 + a.reshape(3, 1, 8)) + b.reshape(3, 1, 8)
        if not isinstance(result, Tensor) or result.shape != n.shape or not torch.equal(result, expected):
            return False
    return True


def require_early(tree: ast.FunctionDef, total: ast.AST, code: ModulationCode) -> None:
    """Check that the factors of a modulation can be read where a sum is evaluated.

    Raises:
        UsageError: If they are not views of variables that are assigned before the sum, or the modulation is not in
            the same block of code after it.
    """
    parents = parents_of(tree)
    statement, later = statement_of(total, parents), statement_of(code.node, parents)
    block = block_of(parents[statement], statement)
    if later not in block or block.index(later) <= block.index(statement):
        raise UsageError(LATE)
    before = [*_earlier(block, statement)]
    for ancestor in ancestors(statement, parents):
        if isinstance(ancestor, ast.stmt) and ancestor is not tree:
            before += _earlier(block_of(parents[ancestor], ancestor), ancestor)
    parameters = {argument.arg for argument in ast.walk(tree.args) if isinstance(argument, ast.arg)}
    targets = [child for each in before for target in _targets(each) for child in ast.walk(target)]
    assigned = parameters | {child.id for child in targets if isinstance(child, ast.Name)}
    for factor in (code.scale, code.shift):
        name = _viewed(factor)
        stores = [
            node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name
            and not isinstance(node.ctx, ast.Load)
        ]  # fmt: skip
        is_late = any((store.lineno, store.col_offset) > (statement.lineno, statement.col_offset) for store in stores)
        if name not in assigned or is_late:
            raise UsageError(LATE)


def _earlier(block: list[ast.stmt], statement: ast.stmt) -> list[ast.stmt]:
    return block[: block.index(statement)] if statement in block else []


def _targets(statement: ast.stmt) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else []


def _viewed(factor: ast.expr) -> str | None:
    """The variable that an expression is a view of; None for other expressions."""
    while not isinstance(factor, ast.Name):
        if isinstance(factor, ast.Subscript) and _is_constant(factor.slice):
            factor = factor.value
        elif (
            isinstance(factor, ast.Call)
            and isinstance(factor.func, ast.Attribute)
            and factor.func.attr in VIEWS
            and not factor.keywords
            and all(_is_constant(argument) for argument in factor.args)
        ):
            factor = factor.func.value
        else:
            return None
    return factor.id


def _is_constant(node: ast.AST) -> bool:
    """Whether an index or argument consists of constants."""
    return all(
        isinstance(child, ast.Constant | ast.Slice | ast.Tuple | ast.UnaryOp | ast.USub | ast.Load)
        for child in ast.walk(node)
    )
