"""Each layer of the package uses only those above it, and importing it is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "normplace"
# From the foundation up; a layer may import itself and any before it.
LAYERS = [
    {"_version", "errors", "fields", "resources", "output", "page_policy", "references", "terminal", "_startup"},
    {"ops"},
    {"norms"},
    {"block", "placement", "presets", "transformer_presets", "scale"},
    {"residual"},
    {"stack"},
    {"models"},
    {"ntk"},
    {"audit"},
    {"convert"},
    {"tasks"},
    {"train"},
    {"lab"},
    {"studies"},
    {"bench"},
    {"doctor"},
    {"cli"},
    {"__main__"},
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}


def imports(path: Path) -> set[str]:
    """The parts of the package a file imports, those inside functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("normplace.")}
    return found


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part != "__init__":
            yield path, part


def test_every_part_has_a_layer():
    assert {part for _, part in modules()} <= RANK.keys()


def test_layers_are_one_way():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {used}"
        for path, part in modules()
        for used in imports(path)
        if used in RANK and RANK[used] > RANK[part]
    ]
    assert wrong == []


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
