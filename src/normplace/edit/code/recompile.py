"""Read a method's syntax tree, and compile a changed tree as the same method.

The method is compiled with its globals, defaults, closure and line numbers, so it can be traced, compiled and debugged
like the original. Of a method with decorators that use ``functools.wraps``, the function inside is read and compiled,
and the decorators are put around it again.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import linecache
from types import CellType, CodeType, FunctionType

from normplace.errors import UsageError


def definition_of(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a method of a class, without its decorators.

    Raises:
        UsageError: If the source cannot be read, or changed since it was imported.
    """
    function = undecorated(function)
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not source:
        raise UsageError(
            f"cannot rewrite {code.co_qualname}, because its source cannot be read: define the class in a file."
        )
    tree = _definition(ast.parse(source), code)
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):  # test runners rewrite assertions
        _check_current(code, _compile(copy.deepcopy(tree), code))
    return tree


def recompile(function: FunctionType, tree: ast.FunctionDef) -> FunctionType:
    """A method with the body of a tree."""
    inner = undecorated(function)
    code = inner.__code__
    new_code = _compile(tree, code)
    cells = dict(zip(code.co_freevars, inner.__closure__ or (), strict=True))
    return _decorated(function, _rebuilt(inner, new_code, tuple(cells[name] for name in new_code.co_freevars)))


def undecorated(function: FunctionType) -> FunctionType:
    """The function inside decorators that use ``functools.wraps``."""
    inner = inspect.unwrap(function)
    return inner if isinstance(inner, FunctionType) else function


def _decorated(function: FunctionType, inner: FunctionType) -> FunctionType:
    """Put the decorators of a function around another one: they read the function they call from their closure.

    Raises:
        UsageError: If a decorator reads it from elsewhere.
    """
    wrapped = getattr(function, "__wrapped__", None)
    if not isinstance(wrapped, FunctionType):
        return inner
    closure = function.__closure__ or ()
    if not any(_contents(cell) is wrapped for cell in closure):
        raise UsageError(f"cannot rewrite {inner.__qualname__}, because a decorator hides it: remove the decorator.")
    new = _decorated(wrapped, inner)
    cells = tuple(CellType(new) if _contents(cell) is wrapped else cell for cell in closure)
    result = _rebuilt(function, function.__code__, cells)
    result.__wrapped__ = new  # pyright: ignore[reportFunctionMemberAccess]
    return result


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _rebuilt(function: FunctionType, code: CodeType, closure: tuple[CellType, ...]) -> FunctionType:
    """A function with other code or another closure."""
    result = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
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
