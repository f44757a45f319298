"""The package's public names load lazily, and its three lists of them agree."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import normplace

LAZY = set(normplace.__all__) - {"__version__"}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_does_not_import_torch():
    assert run_python("import sys, normplace; print('torch' in sys.modules)") == "False\n"


@pytest.mark.parametrize("name", ["audit", "models", "ops", "ntk", "edit", "Placement", "UsageError"])
def test_a_public_name_loads_as_an_attribute_and_by_import(name):
    code = f"import normplace; value = normplace.{name}; from normplace import {name}; print(value is {name})"
    assert run_python(code) == "True\n"


def test_a_submodule_can_be_imported_first():
    assert run_python("import normplace.models; print(normplace.models.MLP.__name__)") == "MLP\n"


def test_every_public_name_loads():
    assert set(dir(normplace)) >= LAZY
    for name in LAZY:
        assert getattr(normplace, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'normplace' has no attribute 'adit'"):
        normplace.adit  # noqa: B018


def test_type_checkers_see_every_public_name():
    tree = ast.parse(Path(normplace.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == LAZY
