"""``normplace doctor``: hardware, optional packages, and how to install them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from tests.cli.terminal import CODE, terminal_output

from normplace.cli import main
from normplace.cli.doctor import OPTIONAL

ROOT = Path(__file__).parents[2]
FOR_DEVELOPERS = {"docs", "dev"}


@pytest.fixture
def only_numba(monkeypatch):
    """An environment in which numba is the only optional package."""
    find = importlib.util.find_spec
    optional = {package.module for package in OPTIONAL} - {"numba"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in optional else find(name))


def test_every_optional_dependency_is_listed_with_its_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    declared = {
        (re.split(r"[<>=;\[]", requirement)[0], f"normplace[{extra}]")
        for extra, requirements in extras.items()
        for requirement in requirements
        if extra not in FOR_DEVELOPERS
    }
    assert declared == {(package.name, package.install) for package in OPTIONAL if package.install != package.name}


def test_the_backends_are_listed(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for backend in ("torch", "cuda", "triton", "boundary", "browser"):
        assert re.search(rf"^  {backend} +(yes|no ) ", out, re.MULTILINE)


def test_the_report_fits_a_narrow_terminal(only_numba, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = terminal_output(monkeypatch, "doctor", no_color="1").splitlines()
    assert max(map(len, lines[:-1])) <= 80  # the last line is a command


def test_a_missing_package_has_its_command(only_numba, capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert rows["numba"][1] == importlib.metadata.version("numba")
    assert rows["ray"][1] == "missing"
    assert "  pip install 'normplace[engines]'      ray, distributed" in lines
    assert "  pip install wandb                     wandb" in lines
    extras = "charts,hf,graphs,engines,train,evaluate,trees,images,sklearn,kamis"
    assert f"1 of {len(OPTIONAL)} optional packages are installed. To install the others:" in lines
    assert lines[-1] == f"  pip install 'normplace[{extras}]' wandb mlflow"


def test_the_packages_as_json(only_numba, capsys):
    assert main(["doctor", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["backends"][0]["name"] == "torch"
    assert [package["name"] for package in result["packages"]] == [package.name for package in OPTIONAL]
    assert [package["name"] for package in result["packages"] if package["version"]] == ["numba"]


def test_missing_packages_have_colour_on_a_terminal(only_numba, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    text = terminal_output(monkeypatch, "doctor")
    assert "\x1b[33mmissing\x1b[0m" in text
    main(["doctor"])
    assert CODE.sub("", text) == capsys.readouterr().out
