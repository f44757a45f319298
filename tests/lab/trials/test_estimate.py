"""Estimated time of a run, from recorded seconds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.lab.sample import STUDY

from normplace.errors import UsageError
from normplace.lab.studies import STUDIES, committed_results
from normplace.lab.trials.environment import hardware, versions
from normplace.lab.trials.estimate import PartEstimate, RunEstimate, estimate
from normplace.lab.trials.record import TrialRecord
from normplace.lab.trials.runner import Run, read_run
from normplace.lab.trials.study import load_study

SECONDS = {"up": 2.0, "down": 10.0}


def write(path: Path, count: int | None = None, scale: str = "laptop", status: str = "ok", factor: float = 1.0) -> Path:
    """Write the first ``count`` trials of the sample study, with seconds by kind."""
    trials = list(Run(STUDY, scale).plan().items())[:count]
    lines = [
        TrialRecord(
            study="sample",
            part=trial.part,
            scale=scale,
            hash=key,
            config=dict(trial.config),
            seed=trial.config["seed"],
            status=status,
            seconds=factor * SECONDS[trial.config["kind"]],
            versions=versions(),
            hardware=hardware(),
        ).to_json()
        for key, trial in trials
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_without_records_the_time_is_unknown(tmp_path):
    result = estimate(Run(STUDY, "laptop"), tmp_path)
    assert result == RunEstimate((PartEstimate("lines", 10, 0, ()),), 0, 0, (), False)
    assert not result.is_known
    assert result.wall_seconds(2) == 0


def test_the_time_of_a_trial_is_that_of_its_variant(tmp_path):
    committed = write(tmp_path / "committed.jsonl")
    result = estimate(Run(STUDY, "laptop", seeds=6), tmp_path / "runs", committed=[committed])
    (part,) = result.parts
    assert sorted(part.seconds) == [2.0] * 6 + [10.0] * 6
    assert (part.trials, part.recorded, part.to_run, part.is_known) == (12, 0, 12, True)
    assert result.wall_seconds(1) == 72
    assert result.wall_seconds(4) == 18
    assert result.wall_seconds(100) == 10  # the longest trial
    assert (result.own, result.committed) == (0, 10)
    assert len(result.machines) == 1


def test_a_changed_setting_has_the_mean_of_its_part(tmp_path):
    committed = write(tmp_path / "committed.jsonl")
    result = estimate(Run(STUDY, "laptop", {"slope": 3.0}), tmp_path / "runs", committed=[committed])
    assert set(result.parts[0].seconds) == {6.0}


def test_records_of_this_machine_come_first_and_are_not_run_again(tmp_path):
    committed = write(tmp_path / "committed.jsonl", factor=100)
    write(tmp_path / "runs" / "sample-laptop.jsonl", 4)
    result = estimate(Run(STUDY, "laptop"), tmp_path / "runs", committed=[committed])
    (part,) = result.parts
    assert (part.trials, part.recorded, part.to_run) == (10, 4, 6)
    assert sorted(part.seconds) == [2.0] * 3 + [10.0] * 3
    assert (result.own, result.committed) == (4, 0)


def test_failed_trials_and_other_scales_do_not_count(tmp_path):
    write(tmp_path / "runs" / "sample-laptop.jsonl", 4, status="failed")
    other = write(tmp_path / "other.jsonl", scale="full")
    (part,) = estimate(Run(STUDY, "laptop"), tmp_path / "runs", committed=[other]).parts
    assert (part.recorded, part.seconds) == (0, ())


def test_a_finished_run_needs_no_time(tmp_path):
    write(tmp_path / "sample-laptop.jsonl")
    result = estimate(Run(STUDY, "laptop"), tmp_path)
    assert result.is_known
    assert result.wall_seconds(1) == 0


def test_nothing_is_written(tmp_path):
    estimate(Run(STUDY, "laptop"), tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_part_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'lines'"):
        estimate(Run(STUDY, "laptop"), tmp_path, ["linse"])


def test_the_committed_results_repeat_their_own_seconds(tmp_path):
    path = next(path for path in committed_results() if path.name == "deepergcn-laptop.jsonl")
    recorded = read_run(path, STUDIES)
    result = estimate(Run(load_study("deepergcn", STUDIES), "laptop"), tmp_path, committed=[path])
    total = sum(record.seconds for record in recorded.records)
    assert sum(second for part in result.parts for second in part.seconds) == pytest.approx(total)
    assert not result.on_gpu
    full = dataclasses.replace(recorded.run, scale="full")
    gpu = next(path for path in committed_results() if path.name == "deepergcn-full.jsonl.gz")
    assert estimate(full, tmp_path, ["memory"], [gpu]).on_gpu
