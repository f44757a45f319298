"""``normplace extrapolate``: sentences, JSON, the page, and ways to pass a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.usage_errors import usage_error

from normplace.cli import main
from normplace.errors import UsageError
from normplace.lab.extrapolate.result import Extrapolation

FACTORY = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))

def with_inputs():
    return build(), torch.zeros(1, 2)

def number():
    return 3

def broken():
    raise RuntimeError("no weights")
"""


@pytest.fixture(autouse=True)
def table_without_scikit_learn(monkeypatch):
    """A table in the current folder; without scikit-learn nothing is trained, so the tests are quick."""
    rows = [f"{n / 20},{(7 * n) % 11},{n / 10 + n % 3}" for n in range(30)]
    Path("table.csv").write_text("\n".join(["a,b,y", *rows]))
    Path("model_file.py").write_text(FACTORY)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "model_file", raising=False)
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "sklearn" else find(name, *a))


def test_sentences_table_and_page(capsys):
    assert main(["extrapolate", "model_file.py:build", "--data", "table.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Your model is unbounded: its prediction of y leaves the range of the targets (")
    assert lines[1] == "One LayerNorm after its layer '0' would bound the model at any weights."
    assert any(line.startswith("all features together") for line in lines)
    assert lines[-1] == f"The picture is in {Path('extrapolation.html').resolve()}"
    assert "Your model is unbounded" in Path("extrapolation.html").read_text()


def test_json_has_every_number(capsys):
    assert main(["extrapolate", "model_file.py:with_inputs", "--data", "table.csv", "--json", "--target", "y"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["layer_that_would_bound"] == "0"
    (model,) = result["models"]
    assert model["verdict"] == "unbounded" and model["departures"][0]["target"] == "y"


def test_a_pickle_is_not_loaded(capsys):
    """Loading it would run the code that it names."""
    for name in ("module.pt", "module.pkl", "estimator.joblib"):
        assert "write a function that loads it" in usage_error(capsys, "extrapolate", name, "--data", "table.csv")


def test_the_page_gets_its_folder(capsys):
    assert main(["extrapolate", "model_file.py:build", "--data", "table.csv", "--html", "pages/p.html"]) == 0
    assert Path("pages/p.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table.csv", "--data", "table.csv"], "'table.csv' is not a model"),
        (["model_file.py:number", "--data", "table.csv"], "is int, neither a torch.nn.Module nor an estimator"),
        (["model_file.py:broken", "--data", "table.csv"], "failed (RuntimeError: no weights, model_file.py:16)"),
        (["model_file.py:build", "--data", "none.csv"], "cannot read none.csv"),
        (["model_file.py:build", "--data", "table.csv", "--target", "z"], "unknown column of table.csv: 'z'"),
        (["model_file.py:build", "--data", "table.csv", "--drop", "a"], "the model failed on 30 rows × 1 features"),
        (["model_file.py:build", "--data", "table.csv", "--html", "."], "it is a folder"),
        (["model_file.py:build"], "the argument --data is missing"),
        ([], "the argument --data is missing"),
        (["table.csv"], "not the table: run 'normplace extrapolate --data table.csv'."),
        (["my table.csv", "--margin", "0.2"], "run 'normplace extrapolate --data 'my table.csv''."),
        (["--data"], "a value --data is missing"),
        (["model_file.py:build", "--data", "table.csv", "--seed", "99999999999"], "seed must be below"),
    ],
)
def test_mistakes(capsys, words, message):
    assert message in usage_error(capsys, "extrapolate", *words)


def test_the_result_is_printed_even_if_the_page_cannot_be_written(monkeypatch, capsys):
    def fail(*_):
        raise UsageError("cannot write the page.")

    monkeypatch.setattr(Extrapolation, "save_html", fail)
    assert main(["extrapolate", "model_file.py:build", "--data", "table.csv"]) == 2
    assert "leaves the range" in capsys.readouterr().out
