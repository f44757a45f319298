"""Objects named on the command line as ``package.module:attribute`` or ``path/to/file.py:attribute``."""

from __future__ import annotations

import difflib
import importlib
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from normplace.errors import UsageError, cause, quoted, user_line


def load_reference(reference: str) -> Any:
    """Import the module and return its attribute.

    The current folder is importable, as for ``python -m``, unless Python runs with ``-P``. A file is imported under the
    name it has in its package, or under its own name if it is not in a package, with its folder importable.

    Raises:
        UsageError: If the reference is not of that form, the import fails, or there is no such attribute.
    """
    module, attribute = load_module(reference)
    if not hasattr(module, attribute):
        name = reference.rpartition(":")[0]
        close = difflib.get_close_matches(attribute, (known for known in vars(module) if known[0] != "_"), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "check the name after the colon."
        raise UsageError(f"module {name!r} has no {attribute!r}: {hint}")
    return getattr(module, attribute)


def importable_reference(reference: str) -> str:
    """``module:name`` of a reference such as ``file.py:name``, for processes that import it by the module's name.

    Raises:
        UsageError: If the reference is malformed, or the import fails.
    """
    module, attribute = load_module(reference)
    return f"{module.__name__}:{attribute}"


def load_module(reference: str) -> tuple[ModuleType, str]:
    """Import the module of a reference; return it and the name of the attribute.

    Raises:
        UsageError: If the reference is malformed, or the import fails.
    """
    name, _, attribute = reference.rpartition(":")
    if not attribute.isidentifier() or not name:
        raise _malformed(reference)
    return _import_file(Path(name)) if is_file_reference(reference) else _import_module(name, reference), attribute


def is_file_reference(reference: str) -> bool:
    """Return whether a reference names a file, such as ``models/mine.py:build``."""
    return reference.rpartition(":")[0].endswith(".py")


def _malformed(reference: str) -> UsageError:
    return UsageError(f"cannot import {quoted(reference)}: write package.module:name or file.py:name.")


def _import_module(name: str, reference: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise _malformed(reference)
    if not sys.flags.safe_path and name not in sys.modules and name.partition(".")[0] != "normplace":
        _make_importable(Path.cwd())
    return _import(name, f"cannot import {name!r}: run from its folder, or set PYTHONPATH.")


def _import_file(path: Path) -> ModuleType:
    try:
        file = path.resolve()
        exists = file.is_file()
    except (OSError, ValueError) as error:  # a loop of links, a null byte
        raise UsageError(f"cannot read {quoted(str(path))}: this is not a possible file name.") from error
    if not exists:
        raise UsageError(f"there is no file {quoted(str(path))}: check the path.")
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(names)
    if not all(part.isidentifier() for part in names):
        raise UsageError(f"cannot import {quoted(str(path))}: rename the file so that {quoted(name)} is a module name.")
    return import_from(folder, name)


def import_from(folder: Path, name: str) -> ModuleType:
    """Import a module that is in a folder; the folder becomes the first on the path of imports.

    Args:
        folder: The folder of the module, or of its top-level package, without symbolic links.
        name: Dotted name of the module.

    Raises:
        UsageError: If the import fails, or a module of this name was imported from another folder.
    """
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
        importlib.invalidate_caches()
    path = folder.joinpath(*name.split("."))
    module = _import(name, f"cannot import {quoted(f'{path}.py')}: check that Python can read it.")
    imported = getattr(module, "__file__", None)
    expected = {file.resolve() for file in (path.with_name(f"{path.name}.py"), path / "__init__.py")}
    if imported is None or Path(imported).resolve() not in expected:
        raise UsageError(f"cannot import {quoted(f'{path}.py')}: another module is called {name!r}; rename the file.")
    return module


def _make_importable(folder: Path) -> None:
    """Put a folder first on the path of imports, also for processes that this one starts with ``spawn``."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()


def _import(name: str, not_found: str) -> ModuleType:
    try:
        with redirect_stdout(sys.stderr):  # what the user's code prints is not a part of the result
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(not_found) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> UsageError:
    return UsageError(
        f"importing {name!r} failed ({cause(error)}{user_line(error)}): import it in Python to see where."
    )
