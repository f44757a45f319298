"""Sums in a function that a method calls, such as ``dropout_add(x, residual, p, training)``.

The function gets a copy whose sum is computed by a fused sum, which it takes as its first argument; the method calls
the copy. Everything else in the function, such as dropout, stays as it is.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from normplace.analysis.recording.source import SourceLocation
from normplace.edit.code.recompile import definition_of, recompile
from normplace.edit.code.rewrite import Position, position_of
from normplace.edit.code.syntax import parents_of, position_in, replace_node, resolve_global
from normplace.errors import UsageError

SUM = "normplace_sum"
"""The added parameter of a copied function."""


@dataclass(frozen=True)
class HelperSum:
    """A sum in a function that a method calls.

    Attributes:
        function: The function, a global of its module.
        position: The position of the sum in its source.
    """

    function: Any
    position: Position


def find_helper(location: SourceLocation, method: FunctionType, call: Position) -> HelperSum | None:
    """The function in which a sum is computed that a method calls; None if there is no call.

    Raises:
        UsageError: If the function cannot be rewritten.
    """
    tree = definition_of(method)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and position_in(node) == call]
    if not nodes:
        return None
    refusal = UsageError("the sum is computed by a function that the method calls")
    function = resolve_global(nodes[0].func, method)
    if not isinstance(function, FunctionType) or function.__closure__ or function.__code__ is not location[0][0]:
        raise refusal
    position = position_of(*location[0])
    if position is None or position_of(*location[1]) != call:
        raise refusal
    helper = HelperSum(function, position)
    rewrite_helper(helper)
    return helper


@lru_cache(maxsize=64)
def rewrite_helper(helper: HelperSum) -> FunctionType:
    """A copy of a function whose first argument computes the sum.

    Raises:
        UsageError: If the function does not write the sum as ``a + b``.
    """
    tree = definition_of(helper.function)
    parents = parents_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and position_in(node) == helper.position:
            new = ast.Call(ast.Name(SUM, ast.Load()), [node.left, node.right], [])
            replace_node(parents[node], node, ast.copy_location(new, node))
            parameters = tree.args.posonlyargs or tree.args.args
            parameters.insert(0, ast.arg(SUM))
            return recompile(helper.function, tree)
    raise UsageError(f"{helper.function.__name__}, which the method calls, does not write the sum as a + b")
