"""Every test of the command line runs in an empty folder and knows the sample study, also in subprocesses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.lab.sample import STUDY

from normplace.cli import main
from normplace.lab.studies import STUDIES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def finished_sample(tmp_path_factory) -> Path:
    """A folder with results of the sample study, run once; tests copy it."""
    folder = tmp_path_factory.mktemp("sample") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STUDIES, "sample", STUDY.reference)
        assert main(["study", "sample", "--jobs", "1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def sample_study_in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.setitem(STUDIES, "sample", STUDY.reference)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
