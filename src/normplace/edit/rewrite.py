"""Rewrite a method so that chosen sums pass through a module.

A residual add is an expression in a module's code, which no hook can reach. The rewrite wraps that expression in the
syntax tree of the method: ``a + b`` becomes ``self.placed["name"](a + b)``. The method is compiled again with its
globals, defaults, closure and line numbers, so it can be traced, compiled and debugged like the original.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import linecache
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

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
        if isinstance(value, RewrittenMethod) and _is_same_definition(value.function.__code__, code):
            return name
    for base in type(module).__mro__:
        for name, value in vars(base).items():
            is_method = isinstance(value, FunctionType) and getattr(type(module), name) is value
            if is_method and _is_same_definition(value.__code__, code):
                return name
    return None


def _is_same_definition(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects come from the same definition, rewritten or not."""
    return (one.co_filename, one.co_firstlineno, one.co_name) == (
        other.co_filename, other.co_firstlineno, other.co_name,
    )  # fmt: skip


class RewrittenMethod:
    """A method of one module instance with some sums wrapped; as an instance attribute it hides the class's method.

    Args:
        module: The module.
        method: The method's name.
        sums: The wrapped expressions, with the names of the placed modules.
    """

    def __init__(self, module: nn.Module, method: str, sums: Mapping[Position, PlacedNames]) -> None:
        self.module, self.method, self.sums = module, method, dict(sums)
        original = getattr(type(module), method)
        self.function = rewrite(original, tuple(self.sums.items()))
        parameters = list(inspect.signature(original).parameters.values())[1:]
        self.__signature__ = inspect.signature(original).replace(parameters=parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the rewritten method."""
        return self.function(self.module, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return RewrittenMethod, (self.module, self.method, self.sums)


def wrap_sum(
    owner: nn.Module, method: str, position: Position, name: str, evaluation: int = 0, evaluations: int = 1
) -> None:
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

    Args:
        function: A method of a class.
        sums: The positions, with the names of the placed modules.

    Raises:
        UsageError: If the source cannot be read, or has no expression at one of the positions.
    """
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not source:
        raise UsageError(
            f"cannot put a norm on the sum in {code.co_qualname}, because its source cannot be read: define the class "
            "in a file."
        )
    tree = _definition(ast.parse(source), code)
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):  # test runners rewrite assertions
        _check_current(code, _compile(copy.deepcopy(tree), code))
    wrapper = _SumWrapper(tree.args.args[0].arg, dict(sums))
    tree.body = [wrapper.visit(statement) for statement in tree.body]
    if wrapper.remaining:
        raise UsageError(
            f"cannot find the residual add of {code.co_qualname} in its source: write it in the method as a sum."
        )
    tree.body[:0] = wrapper.iterators()
    new_code = _compile(tree, code)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in new_code.co_freevars)
    result = FunctionType(new_code, function.__globals__, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = copy.copy(function.__kwdefaults__)
    result.__qualname__, result.__doc__ = function.__qualname__, function.__doc__
    return result


def _compile(tree: ast.FunctionDef, code: CodeType) -> CodeType:
    """Compile a method inside a class and a function that define the same free names as the original."""
    free_names = [name for name in code.co_freevars if name != "__class__"]
    enclosing = code.co_qualname.split(".")[-2:-1]
    owner = enclosing[0] if enclosing and enclosing[0].isidentifier() else "Scope"
    scope = ast.parse(f"def scope({', '.join(free_names)}):\n class {owner}:\n  pass").body[0]
    assert isinstance(scope, ast.FunctionDef)
    assert isinstance(scope.body[0], ast.ClassDef)
    tree.decorator_list = []
    scope.body[0].body = [tree]
    module = ast.fix_missing_locations(ast.Module([scope], []))
    flags = code.co_flags & __future__.annotations.compiler_flag
    compiled = compile(module, code.co_filename, "exec", dont_inherit=True, flags=flags)
    for name in ("scope", owner, code.co_name):
        nested = (constant for constant in compiled.co_consts if isinstance(constant, CodeType))
        compiled = next(constant for constant in nested if constant.co_name == name)
    return compiled


def _check_current(imported: CodeType, compiled: CodeType) -> None:
    """Refuse a file that changed since its import. Instructions may differ where a name was an import."""
    for one, other in (
        (imported.co_names, compiled.co_names),
        (imported.co_varnames, compiled.co_varnames),
        (_plain_constants(imported), _plain_constants(compiled)),
    ):
        if one != other:
            raise UsageError(f"the source of {imported.co_qualname} changed since its import: restart Python.")


def _plain_constants(code: CodeType) -> list[object]:
    return [constant for constant in code.co_consts if not isinstance(constant, CodeType)]


def _definition(tree: ast.Module, code: CodeType) -> ast.FunctionDef:
    """The definition of a method in the syntax tree of its file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first_line == code.co_firstlineno and node.args.args:
                return node
            if first_line == code.co_firstlineno:
                raise UsageError(
                    f"{code.co_qualname} wraps the residual add and has no parameter for the module: remove the "
                    "decorator."
                )
    raise UsageError(f"cannot find {code.co_qualname} in its source file: reload the module.")


class _SumWrapper(ast.NodeTransformer):
    """Wraps the expressions at given positions.

    Attributes:
        remaining: The positions that were not found yet.
    """

    def __init__(self, instance: str, sums: dict[Position, PlacedNames]) -> None:
        self.instance, self.remaining = instance, sums
        self._repeated: dict[str, PlacedNames] = {}

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        if not isinstance(node, ast.BinOp | ast.Call | ast.AugAssign):
            return node
        last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        names = self.remaining.pop((node.lineno, last_line, node.col_offset, last_column), None)
        if names is None:
            return node
        if not isinstance(node, ast.AugAssign):
            return ast.copy_location(self._wrapped(names, node), node)
        operand = copy.copy(node.target)
        operand.ctx = ast.Load()
        total = ast.copy_location(ast.BinOp(operand, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], ast.copy_location(self._wrapped(names, total), node)), node)

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
