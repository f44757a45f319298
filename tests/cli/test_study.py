"""``normplace study``: dry runs, more seeds, totals and colour."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tests.cli.terminal import colours, terminal_output
from tests.cli.usage_errors import usage_error

from normplace.cli import main


def test_a_dry_run_counts_trials_and_runs_nothing(capsys):
    assert main(["study", "sample", "--dry-run", "--jobs", "2"]) == 0
    assert capsys.readouterr().out == (
        "sample at scale laptop; results in runs/sample-laptop.jsonl\n"
        "part   trials  recorded  to run  per trial  one at a time\n"
        "lines      10         0      10    unknown        unknown\n"
        "total      10         0      10                   unknown\n"
        "The time is unknown: no trial of sample at scale laptop is recorded.\n"
    )
    assert not Path("runs").exists()


def test_a_dry_run_names_the_basis_of_its_estimate(capsys):
    assert main(["study", "sample", "--scale", "smoke", "--jobs", "1", "--set", "pause=0.01"]) == 0
    capsys.readouterr()
    assert main(["study", "sample", "--scale", "smoke", "--dry-run", "--seeds", "4", "--set", "pause=0.01"]) == 0
    out = capsys.readouterr().out
    assert "lines       8         4       4" in out
    assert "from the recorded seconds of 4 trials in the result file (" in out
    assert main(["study", "deepergcn", "--part", "dropout", "--dry-run", "--jobs", "3"]) == 0
    out = capsys.readouterr().out
    assert "Estimated time with --jobs 3: " in out
    assert "from the recorded seconds of 10 trials of the package's results (2 cores of AMD EPYC" in out


def test_a_dry_run_as_json(capsys):
    assert main(["study", "deepergcn", "--part", "dropout", "--dry-run", "--jobs", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (part,) = result["parts"]
    assert (part["part"], part["trials"], part["recorded"], part["to_run"]) == ("dropout", 10, 0, 10)
    assert result["estimated_seconds"] == pytest.approx(part["seconds"] / 2, abs=0.01)
    assert result["based_on"]["committed_trials"] == 10


def test_more_seeds_are_run_and_counted(capsys):
    assert main(["study", "sample", "--jobs", "1"]) == 0
    assert "10 trials recorded" in capsys.readouterr().out
    assert main(["study", "sample", "--jobs", "1", "--seeds", "7", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["trials"] == 14
    assert {check["n"] for claim in result["claims"] for check in claim["checks"]} == {7}
    assert main(["verify", "runs", "--json"]) == 0
    assert {check["n"] for claim in json.loads(capsys.readouterr().out) for check in claim["checks"]} == {7}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seeds", "5"], "--seeds 5 adds no trial, because the study plans at least 5 seeds"),
        (["--seeds", "0"], "--seeds must be a whole number of at least 1, got 0."),
        (["--seeds", "-3"], "--seeds must be a whole number of at least 1, got -3."),
        (["--seeds", "1e3"], "--seeds takes a whole number"),
        (["--seeds", "many"], "--seeds takes a whole number"),
        (["--seeds"], "a value --seeds is missing"),
        (["--dry-run", "--jobs", "0"], "--jobs must be a whole number of at least 1, got 0."),
        (["--dry-run", "--part", "linse"], "did you mean 'lines'?"),
        (["--dry-run", "--out", "n" * 300], "File name too long"),
    ],
)
def test_a_wrong_option_is_one_sentence(words, sentence, capsys):
    assert sentence in usage_error(capsys, "study", "sample", *words)


def test_the_verdicts_end_with_totals_and_have_colour_on_a_terminal(monkeypatch, capsys):
    words = ("study", "sample", "--jobs", "1")
    assert main(words) == 0
    assert "2 claims: 1 reproduced, 1 not reproduced.\n" in capsys.readouterr().out
    text = terminal_output(monkeypatch, *words)
    assert "\x1b[32mreproduced\x1b[0m: Up goes up." in text
    assert colours(terminal_output(monkeypatch, *words, no_color="1")) == set()


def test_a_dry_run_names_a_missing_engine(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    words = ("study", "sample", "--dry-run", "--engine", "ray")
    assert "the ray engine needs 'ray': pip install 'normplace[engines]'" in usage_error(capsys, *words)
