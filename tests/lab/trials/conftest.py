"""Isolation of the studies that tests write to files."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from tests.lab.trials.own_study import write_study
from tests.own_modules import forget_modules_in


@pytest.fixture
def forget_imports(monkeypatch, tmp_path):
    """Undo the imports from the folder of a test, and what it changes on the path of imports."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    forget_modules_in(tmp_path)


@pytest.fixture
def own_study(forget_imports, monkeypatch, tmp_path) -> Path:
    """The file of a user's study, in a folder that is not the current one; the user has run no study yet."""
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return write_study(tmp_path / "project")
