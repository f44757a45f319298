"""Every test of the command line runs in an empty folder and knows the sample study, also in subprocesses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.lab.sample import STUDY

from normplace.cli import main
from normplace.lab.studies import STUDIES

ROOT = Path(__file__).parents[2]


def run_once(folder: Path, *options: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STUDIES, "sample", STUDY.reference)
        assert main(["study", "sample", "--jobs", "1", "--out", str(folder), *options]) == 0
    return folder


@pytest.fixture(scope="session")
def finished_sample(tmp_path_factory) -> Path:
    """A folder with results of the sample study, run once; tests copy it."""
    return run_once(tmp_path_factory.mktemp("sample") / "runs")


@pytest.fixture(scope="session")
def finished_smoke(tmp_path_factory) -> Path:
    return run_once(tmp_path_factory.mktemp("sample") / "runs", "--scale", "smoke")


@pytest.fixture
def smoke_results(finished_smoke, tmp_path, sample_study_in_an_empty_folder) -> Path:
    """The result file of the sample study at scale smoke, in the folder ``runs`` of the test."""
    return shutil.copytree(finished_smoke, tmp_path / "runs") / "sample-smoke.jsonl"


@pytest.fixture(autouse=True)
def sample_study_in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.setitem(STUDIES, "sample", STUDY.reference)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
