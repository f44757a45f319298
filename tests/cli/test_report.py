"""The command ``normplace report``: which results it passes on, and what it prints."""

from __future__ import annotations

import shutil

import pytest

from normplace.cli import main
from normplace.lab.studies import committed_results


@pytest.fixture
def sections(monkeypatch, tmp_path) -> list:
    """The sections of the last report, which is not written."""
    monkeypatch.chdir(tmp_path)
    passed = []
    monkeypatch.setattr("normplace.lab.report.write_report", lambda sections, path: passed.extend(sections))
    return passed


def copy_of(name: str, folder) -> str:
    (source,) = (path for path in committed_results() if path.name.startswith(name))
    return str(shutil.copy(source, folder))


def test_your_results_are_compared_with_those_of_the_package(sections, tmp_path):
    assert main(["report", copy_of("causalrn-laptop", tmp_path), "--committed"]) == 0
    assert [(one.study.name, one.scale, one.committed) for one in sections] == [
        ("causalrn", "laptop", False),
        ("causalrn", "full", True),
        ("causalrn", "laptop", True),
    ]


def test_results_of_the_package_are_recognized_and_read_once(sections):
    (path,) = (path for path in committed_results() if path.name.startswith("causalrn-laptop"))
    assert main(["report", str(path), "--committed"]) == 0
    assert [(one.scale, one.committed) for one in sections] == [("laptop", True), ("full", True)]


def test_without_the_option_there_are_only_your_results(sections, tmp_path):
    assert main(["report", copy_of("causalrn-laptop", tmp_path)]) == 0
    assert [one.committed for one in sections] == [False]


def test_without_vl_convert_it_prints_how_to_get_figures(sections, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("normplace.lab.report.charts_installed", lambda: False)
    assert main(["report", copy_of("causalrn-laptop", tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "The report has tables only: run pip install 'normplace[charts]' for its figures." in output
