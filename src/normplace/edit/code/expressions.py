"""Which value each expression in a module's methods returns, recorded in one pass with instrumented methods.

A query that is a part of a fused projection is the output of no module. It is the value of an expression, such as the
argument ``q`` of ``scaled_dot_product_attention(q, k, v)``, which :mod:`normplace.edit.code.rewrite` can wrap.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.recorder import Recorder
from normplace.edit.code.recompile import definition_of, recompile
from normplace.edit.code.rewrite import PlacedNames, Position, RewrittenMethod, wrap_expressions
from normplace.edit.code.syntax import ancestors, parents_of, position_in
from normplace.edit.verify.capture import Arguments, record_again
from normplace.errors import UsageError

PROBE = "_normplace_probe"
"""The attribute of a module that its instrumented methods call, while a pass is recorded."""
READ_ONLY = {"super", "locals", "vars", "len", "isinstance", "size", "dim", "numel", "stride", "get_device"}
"""Calls that read no numbers of their arguments."""
CONDITIONAL = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.With, ast.comprehension, ast.Lambda)


@dataclass(frozen=True)
class ExpressionRef:
    """An expression in a method of a module.

    Attributes:
        module: The module's name.
        method: The method.
        position: The position of the expression in the source.
        depth: How many conditions, loops and other statements contain it.
        is_assigned: Whether a variable gets its value, so that all later code reads it.
    """

    module: str
    method: str
    position: Position
    depth: int
    is_assigned: bool


class ExpressionRecorder(Recorder):
    """A recorder that also records the values of expressions.

    Attributes:
        values: The values of each expression, in the order of their evaluations.
    """

    measures_ranges = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.values: dict[ExpressionRef, list[ValueId]] = {}

    def note(self, ref: ExpressionRef, value: Any) -> None:
        """Record the value of an expression, if it is a tensor that the pass has seen."""
        known = self.known_value(value) if isinstance(value, Tensor) else None
        if known is not None:
            self.values.setdefault(ref, []).append(known)


def record_expressions(
    analysis: Analysis, arguments: Arguments, paths: Iterable[str]
) -> dict[ExpressionRef, list[ValueId]]:
    """The values of the arguments, operands and assigned expressions in the methods of modules.

    Returns:
        The values by expression, with the ids that the analysis gives them.
    """
    recorder = ExpressionRecorder(analysis.model)
    with _instrumented(analysis.model, recorder, paths):
        record_again(analysis, arguments, recorder)
    return recorder.values


@contextmanager
def _instrumented(model: nn.Module, recorder: ExpressionRecorder, paths: Iterable[str]) -> Iterator[None]:
    """Replace the methods of modules by instrumented ones."""
    replaced: list[tuple[nn.Module, str, Any]] = []
    try:
        for path in dict.fromkeys(paths):
            module = model.get_submodule(path)
            for method, function in _methods(module):
                current = vars(module).get(method)
                if current is not None and not isinstance(current, RewrittenMethod):
                    continue  # replaced by other code
                sums = tuple(current.sums.items()) if isinstance(current, RewrittenMethod) else ()
                try:
                    instrumented, sources = _instrument(function, sums)
                except UsageError:
                    continue  # without source
                refs = {key: ExpressionRef(path, method, *source) for key, source in sources.items()}
                replaced.append((module, method, current))
                vars(module)[method] = MethodType(instrumented, module)
                vars(module).setdefault(PROBE, _Probe(recorder)).refs.update(refs)
        yield
    finally:
        for module, method, current in replaced:
            vars(module).pop(PROBE, None)
            vars(module).pop(method)
            if current is not None:
                vars(module)[method] = current


class _Probe:
    """Reports the values of expressions to a recorder, and returns them."""

    def __init__(self, recorder: ExpressionRecorder) -> None:
        self.recorder = recorder
        self.refs: dict[str, ExpressionRef] = {}

    def __call__(self, key: str, value: Any) -> Any:
        self.recorder.note(self.refs[key], value)
        return value


def _methods(module: nn.Module) -> Iterator[tuple[str, FunctionType]]:
    """The methods that a module's own classes define."""
    seen = set()
    for base in type(module).__mro__:
        if base is nn.Module:
            return
        for name, value in vars(base).items():
            if isinstance(value, FunctionType) and name not in seen and not name.startswith("__"):
                seen.add(name)
                yield name, value


@lru_cache(maxsize=256)  # the layers of a stack share their methods
def _instrument(
    function: FunctionType, sums: tuple[tuple[Position, PlacedNames], ...]
) -> tuple[FunctionType, dict[str, tuple[Position, int, bool]]]:
    """A method that reports its expressions to the probe, and the last three fields of their :class:`ExpressionRef`."""
    tree = definition_of(function)
    parents = parents_of(tree)
    sources: dict[str, tuple[Position, int, bool]] = {}
    keys: dict[ast.expr, str] = {}
    instance = tree.args.args[0].arg
    for expression in (expression for node in ast.walk(tree) for expression in operands_of(node)):
        is_instance = isinstance(expression, ast.Name) and expression.id == instance
        if isinstance(expression, ast.Name | ast.Attribute | ast.Call | ast.BinOp | ast.Subscript) and not is_instance:
            depth = sum(isinstance(node, CONDITIONAL) for node in ancestors(expression, parents))
            keys[expression] = f"{function.__name__}:{len(keys)}"
            parent = parents[expression]
            statement = parents[parent] if isinstance(parent, ast.Tuple) else parent
            sources[keys[expression]] = position_in(expression), depth, isinstance(statement, ast.Assign)
    wrapper = _ProbeWrapper(instance, keys)
    tree.body = [wrapper.visit(statement) for statement in tree.body]
    wrap_expressions(tree, dict(sums))
    return recompile(function, tree), sources


def operands_of(node: ast.AST) -> list[ast.expr]:
    """The expressions of a node that may hold queries or keys: arguments, operands, receivers, assigned values."""
    if isinstance(node, ast.Call):
        function = node.func
        if (isinstance(function, ast.Name) and function.id in READ_ONLY) or (
            isinstance(function, ast.Attribute) and function.attr in READ_ONLY
        ):
            return []
        receiver = [function.value] if isinstance(function, ast.Attribute) else []
        return [*receiver, *node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Assign):
        return node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    return []


class _ProbeWrapper(ast.NodeTransformer):
    """Wraps chosen expressions in a call of the probe, which keeps their position."""

    def __init__(self, instance: str, keys: dict[ast.expr, str]) -> None:
        self.instance, self.keys = instance, keys

    def visit(self, node: ast.AST) -> Any:
        key = self.keys.get(node) if isinstance(node, ast.expr) else None
        node = self.generic_visit(node)
        if key is None or not isinstance(node, ast.expr):
            return node
        probe = ast.Attribute(ast.Name(self.instance, ast.Load()), PROBE, ast.Load())
        return ast.copy_location(ast.Call(probe, [ast.Constant(key), node], []), node)
