"""Read a method's syntax tree, and compile a changed tree as the same method.

The method is compiled with its globals, defaults, closure and line numbers, so it can be traced, compiled and debugged
like the original.
"""

from __future__ import annotations
import __future__

import ast
import copy
import linecache
from types import CodeType, FunctionType

from normplace.errors import UsageError


def definition_of(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a method of a class, without its decorators.

    Raises:
        UsageError: If the source cannot be read, or changed since it was imported.
    """
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
    """A method with the body of a tree.

    Args:
        function: The method that the tree was made from.
        tree: Its changed definition.
    """
    code = function.__code__
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
