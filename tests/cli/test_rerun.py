"""``normplace rerun``: recorded trials run again and give the recorded numbers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.usage_errors import usage_error
from tests.lab.sample import STUDY

from normplace.cli import main
from normplace.lab.studies import STUDIES
from normplace.lab.trials.record import TrialRecord
from normplace.lab.trials.rerun import Comparison, draw
from normplace.lab.trials.results import read_records
from normplace.lab.trials.runner import read_run


@pytest.fixture
def results(finished_sample) -> Path:
    return Path(shutil.copytree(finished_sample, "runs")) / "sample-laptop.jsonl"


def rewrite(path: Path, change) -> None:
    path.write_text("".join(change(record).to_json() + "\n" for record in read_records(path)))


def test_the_numbers_are_those_of_the_records(results, capsys):
    before = results.read_bytes()
    assert main(["rerun", "runs", "--trials", "3", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "3 trials: 3 equal." in out
    assert results.read_bytes() == before
    assert main(["rerun", "runs", "--json", "--jobs", "1"]) == 0
    trials = json.loads(capsys.readouterr().out)
    assert len(trials) == 10
    assert {trial["outcome"] for trial in trials} == {"equal"}
    assert all(trial["same_environment"] and trial["recorded"] == trial["repeated"] for trial in trials)


def test_other_numbers_are_different(results, capsys):
    rewrite(results, lambda record: replace(record, metrics={"value": 2 * record.metrics["value"]}))
    assert main(["rerun", "runs", "--trials", "2", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 trials: 2 different." in out
    assert "0.5 of value" in out


def test_a_failed_trial_ends_with_1(results, capsys):
    first = read_records(results)[0]
    assert main(["study", "sample", "--set", "mark=fail:up0", "--out", "failing", "--jobs", "1"]) == 1
    failed = next(path for path in Path("failing").iterdir())
    rewrite(failed, lambda record: replace(record, status="ok", error=None, metrics=first.metrics))
    capsys.readouterr()
    assert main(["rerun", str(failed), "--trials", "99", "--jobs", "1"]) == 1
    assert "1 failed" in capsys.readouterr().out


def test_trials_are_drawn_from_all_parts_in_turn(results):
    second = replace(STUDY.parts[0], name="more")
    run = read_run(results, STUDIES)
    study = replace(STUDY, parts=(*STUDY.parts, second))
    records = [replace(record, part="more" if record.seed > 3 else record.part) for record in run.records]
    run = replace(run, run=replace(run.run, study=study), records=records)
    parts = [record.part for _, record in draw([run], 4, 60.0)]
    assert sorted(parts) == ["lines", "lines", "more", "more"]
    hashes = [[record.hash for _, record in draw([run], 4, 60.0, seed)] for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_long_trials_and_those_of_a_gpu_are_not_drawn(results, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = read_run(results, STUDIES)
    gpu = {"gpu": "a GPU"}
    records = [
        replace(record, seconds=100.0 if record.seed < 2 else 1.0, hardware=gpu if record.seed == 4 else {})
        for record in run.records
    ]
    assert {record.seed for _, record in draw([replace(run, records=records)], 99, 30.0)} == {2, 3}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trials", "0"], "--trials must be a whole number of at least 1, got 0"),
        (["--longest", "-1"], "no recorded trial of at most -1 s can run here: raise --longest"),
        (["--only", "smaple"], "unknown study among these results: 'smaple': did you mean 'sample'?"),
    ],
)
def test_usage_errors(words, sentence, results, capsys):
    assert sentence in usage_error(capsys, "rerun", "runs", *words)


def compared(old: dict[str, float | None], new: dict[str, float | None], times: tuple[str, ...] = ()) -> Comparison:
    study = replace(STUDY, parts=(replace(STUDY.parts[0], machine_metrics=times),))
    records = [TrialRecord("sample", "lines", "laptop", "", {}, 0, "ok", metrics) for metrics in (old, new)]
    return Comparison(study, *records)


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ({"a": 1.0, "b": None}, {"a": 1.0, "b": None}, "equal"),
        ({"a": 1.0}, {"a": 1.000001}, "rounding"),
        ({"a": 1.0}, {"a": 1.1}, "different"),
        ({"a": 0.0}, {"a": 1e-9}, "different"),
        ({"a": 1.0}, {"a": None}, "different"),
        ({"a": 1.0}, {"b": 1.0}, "different"),
        ({}, {}, "equal"),
    ],
)
def test_outcomes(old, new, outcome):
    assert compared(old, new).outcome == outcome


def test_metrics_of_the_machine_are_not_compared():
    assert compared({"a": 1.0, "seconds": 2.0}, {"a": 1.0, "seconds": 3.0}, ("seconds",)).outcome == "equal"
    assert compared({"a": 1.0}, {"a": 2.0}, ("seconds",)).difference == ("a", 0.5)


def test_an_interruption_keeps_the_finished_comparisons(results, capsys, monkeypatch):
    def two_then_interrupted(drawn, engine, progress):
        for result, record in drawn[:2]:
            yield Comparison(result.run.study, record, record)
        raise KeyboardInterrupt

    monkeypatch.setattr("normplace.lab.trials.rerun.rerun", two_then_interrupted)
    assert main(["rerun", "runs", "--jobs", "1"]) == 130
    assert "2 trials: 2 equal." in capsys.readouterr().out
