"""The package's public names load lazily, and its three lists of them agree."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import normplace

LAZY = set(normplace.__all__) - {"__version__"}


def run_python(code: str, *arguments: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_does_not_import_torch():
    assert run_python("import sys, normplace; print('torch' in sys.modules)") == "False\n"


# A new process for each name, forked from one that has imported PyTorch, which takes most of the time.
LOAD_EACH_FIRST = """
import os, sys, torch
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        exec(f"import normplace; value = normplace.{name}; from normplace import {name}; same = value is {name}")
        print(name, same, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_public_name_loads_as_an_attribute_and_by_import():
    names = ["audit", "models", "ops", "ntk", "edit", "Placement", "UsageError"]
    assert run_python(LOAD_EACH_FIRST, *names).splitlines() == [f"{name} True" for name in names]


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
