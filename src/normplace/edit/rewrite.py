"""Methods rewritten so that chosen sums pass through a module of ours.

A residual add is an expression of a module's own code, which no hook can see. So that one expression is wrapped in the
syntax tree of the method, ``a + b`` becoming ``self.placed["name"](a + b)``, and the method is compiled again with
its globals, defaults, closure and line numbers. It stays ordinary Python, traced, compiled and debugged as before.
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

PLACED = "placed"  # the child of a module that holds what was put into it
Position = tuple[int, int, int, int]
Keys = tuple[str | None, ...]  # for each time the expression is evaluated in one call


def position_of(code: CodeType, at: int) -> Position | None:
    """Line, last line, column and last column of the expression an instruction belongs to."""
    line, last_line, column, last_column = list(code.co_positions())[at // 2]
    if line is None or last_line is None or column is None or last_column is None:
        return None
    return line, last_line, column, last_column


def method_of(module: nn.Module, code: CodeType) -> str | None:
    """The name of the method of a module that runs this code, be it rewritten already or not."""
    for name, held in vars(module).items():
        if isinstance(held, RewrittenMethod) and _is_same(held.function.__code__, code):
            return name
    for kind in type(module).__mro__:
        for name, held in vars(kind).items():
            if isinstance(held, FunctionType) and getattr(type(module), name) is held and _is_same(held.__code__, code):
                return name
    return None


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes are of one definition, rewritten or not."""
    return (one.co_filename, one.co_firstlineno, one.co_name) == (
        other.co_filename, other.co_firstlineno, other.co_name,
    )  # fmt: skip


class RewrittenMethod:
    """A method of one module with some of its sums wrapped; set on the instance, it hides that of the class.

    Args:
        module: The module.
        method: The method's name.
        sums: For each place in its source the keys, in the module's ``placed``, of what its values pass through.
    """

    def __init__(self, module: nn.Module, method: str, sums: Mapping[Position, Keys]) -> None:
        self.module, self.method, self.sums = module, method, dict(sums)
        original = getattr(type(module), method)
        self.function = rewritten(original, tuple(self.sums.items()))
        bound = list(inspect.signature(original).parameters.values())[1:]
        self.__signature__ = inspect.signature(original).replace(parameters=bound)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the method returns."""
        return self.function(self.module, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return RewrittenMethod, (self.module, self.method, self.sums)


@lru_cache(maxsize=256)  # the layers of a stack have one and the same
def rewritten(function: FunctionType, sums: tuple[tuple[Position, Keys], ...]) -> FunctionType:
    """The function with the values of the expressions at these places passed on.

    Args:
        function: A method of a class.
        sums: The places, with the keys of what the values pass through.

    Raises:
        UsageError: If its source cannot be read, or something else stands there.
    """
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not source:
        raise UsageError(
            f"the source of {code.co_qualname} is needed to put a norm on its sum, and there is none to read: define "
            "the class in a file."
        )
    tree = _definition(ast.parse(source), code)
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):  # test runners rewrite those
        _check_current(code, _compiled(copy.deepcopy(tree), code))
    wrapper = _Wrapper(tree.args.args[0].arg, dict(sums))
    tree.body = [wrapper.visit(statement) for statement in tree.body]
    if wrapper.left:
        raise UsageError(
            f"the residual add of {code.co_qualname} is no expression of its own source: write it there as a sum."
        )
    tree.body[:0] = wrapper.iterators()
    made = _compiled(tree, code)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in made.co_freevars)
    result = FunctionType(made, function.__globals__, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = copy.copy(function.__kwdefaults__)
    result.__qualname__, result.__doc__ = function.__qualname__, function.__doc__
    return result


def _compiled(tree: ast.FunctionDef, code: CodeType) -> CodeType:
    """The code of a method, compiled in a class and a scope of the same names, so that names mean what they did."""
    free = [name for name in code.co_freevars if name != "__class__"]
    around = code.co_qualname.split(".")[-2:-1]
    owner = around[0] if around and around[0].isidentifier() else "Scope"
    scope = ast.parse(f"def scope({', '.join(free)}):\n class {owner}:\n  pass").body[0]
    assert isinstance(scope, ast.FunctionDef)
    assert isinstance(scope.body[0], ast.ClassDef)
    tree.decorator_list = []
    scope.body[0].body = [tree]
    module = ast.fix_missing_locations(ast.Module([scope], []))
    flags = code.co_flags & __future__.annotations.compiler_flag
    made = compile(module, code.co_filename, "exec", dont_inherit=True, flags=flags)
    for name in ("scope", owner, code.co_name):
        made = next(held for held in made.co_consts if isinstance(held, CodeType) and held.co_name == name)
    return made


def _check_current(code: CodeType, made: CodeType) -> None:
    """Refuse a file that was changed since it was imported; instructions may differ where a name was an import."""
    for one, other in (
        (code.co_names, made.co_names),
        (code.co_varnames, made.co_varnames),
        (_plain(code), _plain(made)),
    ):
        if one != other:
            raise UsageError(f"the source of {code.co_qualname} is not what was imported: start Python again.")


def _plain(code: CodeType) -> list[object]:
    return [held for held in code.co_consts if not isinstance(held, CodeType)]


def _definition(tree: ast.Module, code: CodeType) -> ast.FunctionDef:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno and node.args.args:
                return node
            if first == code.co_firstlineno:
                raise UsageError(
                    f"{code.co_qualname} stands around the sum and has no argument of its own for the module: take the "
                    "decorator off."
                )
    raise UsageError(f"{code.co_qualname} is not a method in the file it says it is from: reload the module.")


class _Wrapper(ast.NodeTransformer):
    """Wraps the expressions at given places."""

    def __init__(self, instance: str, sums: dict[Position, Keys]) -> None:
        self.instance, self.left, self.repeated = instance, sums, {}

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        if not isinstance(node, ast.BinOp | ast.Call | ast.AugAssign):
            return node
        last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        keys = self.left.pop((node.lineno, last_line, node.col_offset, last_column), None)
        if keys is None:
            return node
        if not isinstance(node, ast.AugAssign):
            return ast.copy_location(self._through(keys, node), node)
        read = copy.copy(node.target)
        read.ctx = ast.Load()
        total = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], ast.copy_location(self._through(keys, total), node)), node)

    def _through(self, keys: Keys, value: ast.expr) -> ast.Call:
        if len(keys) == 1:
            function = self._module(keys[0])
        else:
            name = f"_sums_{len(self.repeated)}"
            self.repeated[name] = keys
            function = _expression(f"next({name})")
        return ast.Call(function, [value], [])

    def _module(self, key: str | None) -> ast.expr:
        return _expression("(lambda value: value)" if key is None else f"{self.instance}.{PLACED}[{key!r}]")

    def iterators(self) -> list[ast.stmt]:
        """What goes through sums that one call evaluates again and again, in turn."""
        made: list[ast.stmt] = []
        for name, keys in self.repeated.items():
            held = ast.Tuple([self._module(key) for key in keys], ast.Load())
            made.append(ast.Assign([ast.Name(name, ast.Store())], ast.Call(_expression("iter"), [held], [])))
        return made


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body
