"""The modules of one folder that a module imports, found in its source without running it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path


def local_modules(folder: Path, name: str) -> dict[str, Path]:
    """Return the files of a module and of all modules in the same folder that it imports, also inside functions.

    Modules whose names are computed, as in ``importlib.import_module(name)``, are not included, nor is normplace.

    Returns:
        Files by dotted name; the packages that contain a module are included.
    """
    files: dict[str, Path] = {}
    names = [name]
    while names:
        for prefix in itertools.accumulate(names.pop().split("."), "{}.{}".format):
            file = _module_file(folder, prefix)
            if file is not None and prefix not in files and prefix.partition(".")[0] != "normplace":
                files[prefix] = file
                names += _imported_names(file, prefix)
    return files


def _module_file(folder: Path, name: str) -> Path | None:
    path = folder.joinpath(*name.split("."))
    candidates = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((file for file in candidates if file.is_file()), None)


def _imported_names(file: Path, name: str) -> Iterator[str]:
    """Dotted names of what a module imports: modules, and attributes that may be modules."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            base = [*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)
