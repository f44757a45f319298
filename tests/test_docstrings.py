"""The examples in docstrings run and print what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[1] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_show(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        failed, run = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert run
    assert not failed, capsys.readouterr().out
