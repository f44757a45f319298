"""Each layer of the package uses only those above it, and importing it is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "normplace"
# From the foundation up; a layer may import itself and any before it.
LAYERS = [
    {"_version", "errors", "_startup", "_shared"},
    {"ops"},
    {"norms"},
    {"placement"},
    {"residual"},
    {"stack"},
    {"models"},
    {"ntk"},
    {"analysis"},
    {"edit"},
    {"lab.tasks"},
    {"lab.train"},
    {"lab.trials"},
    {"lab.report"},
    {"lab.studies"},
    {"lab.bench"},
    {"cli"},
    {"__main__"},
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}


WINGS = {"lab"}
"""Packages whose parts are layers of their own."""


def part_of(names: Sequence[str]) -> str:
    """The layer's part that a dotted name below the package belongs to."""
    return ".".join(names[:2] if names[0] in WINGS else names[:1])


def imports(path: Path) -> set[str]:
    """The parts of the package a file imports, those inside functions included."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {part_of(name.split(".")[1:]) for name in names if name.startswith("normplace.")}
    return parts


def modules():
    """Every module of the package with the part it belongs to."""
    for path in sorted(SOURCE.rglob("*.py")):
        names = path.relative_to(SOURCE).with_suffix("").parts
        if names[-1] != "__init__" or part_of(names) in RANK:
            yield path, part_of(names)


def test_every_part_has_a_layer():
    assert {part for _, part in modules()} == RANK.keys()


def test_layers_are_one_way():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {used}"
        for path, part in modules()
        for used in imports(path)
        if used in RANK and RANK[used] > RANK[part]
    ]
    assert wrong == []


def test_the_library_does_not_import_the_lab():
    library = [(path, part) for path, part in modules() if not part.startswith(("lab.", "cli", "__main__"))]
    assert len(library) > 100
    assert [str(path) for path, _ in library if any(used.startswith("lab.") for used in imports(path))] == []


def test_importing_normplace_is_cheap():
    code = "import sys, normplace; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "scipy",
        "rich",
        "ray",
        "distributed",
        "dask",
        "vl_convert",
        "torch_geometric",
        "joblib",
        "transformers",
        "numba",
    }
    assert heavy & set(loaded) == set()


def test_files_hold_one_idea():
    long = {str(path): lines for path, _ in modules() if (lines := len(path.read_text().splitlines())) > 400}
    assert long == {}
