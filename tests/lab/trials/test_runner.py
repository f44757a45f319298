"""Running studies: resume, failures, overrides, and the three engines."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.lab import sample
from tests.lab.sample import STUDY

from normplace import UsageError
from normplace.lab.trials.engines import RETRIES, LocalEngine, open_engine
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.results import ResultFile, TrialRecord, read_records
from normplace.lab.trials.runner import Run, read_run, run_trial
from normplace.lab.trials.study import load_study

REGISTRY = {"sample": STUDY.reference}


class Counting:
    """An engine in this process that counts what it runs."""

    def __init__(self):
        self.ran = []

    def run(self, function, items, started):
        for index, item in enumerate(items):
            started(index)
            self.ran.append(item)
            yield index, function(item)

    def close(self):
        pass


def execute(out, engine=None, scale="smoke", **overrides):
    return Run(STUDY, scale, overrides).execute(out, engine or Counting(), Progress(io.StringIO()))


def facts(lines):
    """What must not depend on where and when a trial ran."""
    return sorted((line.hash, line.seed, line.status, str(line.metrics), str(line.series)) for line in lines)


def test_a_second_run_has_nothing_to_do(tmp_path):
    first = execute(tmp_path)
    again = Counting()
    assert execute(tmp_path, again) == first
    assert again.ran == []
    assert len(read_records(tmp_path / "sample-smoke.jsonl")) == 4


def test_a_line_says_what_a_reader_needs(tmp_path):
    line = execute(tmp_path)[0]
    assert line.config == {"kind": "up", "seed": 0, "slope": 1.0, "pause": 0.0, "mark": ""}
    assert {"normplace", "python", "torch", "numpy"} <= line.versions.keys()
    assert {"cpu", "cores", "memory_gb"} <= line.hardware.keys()
    assert line.finished.endswith("+00:00")


def test_a_failure_is_recorded_does_not_stop_the_others_and_is_retried(tmp_path):
    lines = execute(tmp_path, mark="fail:up1")
    assert [line.status for line in lines] == ["ok", "ok", "failed", "ok"]
    assert "asked to fail" in lines[2].error
    again = Counting()
    execute(tmp_path, again, mark="fail:up1")
    assert [trial.config["seed"] for trial in again.ran] == [1]


def test_a_trial_that_cannot_run_here_is_left_out_with_a_note(tmp_path):
    part = dataclasses.replace(
        STUDY.parts[0], unavailable_reason=lambda trial: "there is no down here." if trial.kind == "down" else None
    )
    study = dataclasses.replace(STUDY, parts=(part,))
    stream, engine = io.StringIO(), Counting()
    lines = Run(study, "smoke").execute(tmp_path, engine, Progress(stream))
    assert [line.config["kind"] for line in lines] == ["up", "up"]
    assert stream.getvalue() == "note: skipped 2 trials of part 'lines': there is no down here.\n"
    whole = Counting()
    assert len(Run(STUDY, "smoke").execute(tmp_path, whole, Progress(io.StringIO()))) == 4
    assert [trial.config["kind"] for trial in whole.ran] == ["down", "down"]
    again = Run(study, "smoke").execute(tmp_path, Counting(), Progress(stream := io.StringIO()))
    assert len(again) == 4
    assert stream.getvalue() == ""


def test_overrides_have_a_file_of_their_own(tmp_path):
    execute(tmp_path)
    lines = execute(tmp_path, slope=2.0)
    assert lines[0].metrics == {"value": 2.0}
    assert lines[0].overrides == {"slope": 2.0}
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    with pytest.raises(UsageError, match="make two trials of 'sample' equal"):
        execute(tmp_path, kind="up")
    with pytest.raises(UsageError, match="seed is part of the plan"):
        execute(tmp_path, seed=1)


def test_a_recorded_run_is_found_again(tmp_path):
    lines = execute(tmp_path, slope=2.0)
    (path,) = tmp_path.glob("*.jsonl")
    recorded = read_run(path, REGISTRY)
    assert recorded.records == lines
    assert recorded.damaged == []
    assert recorded.run.command == "normplace study sample --scale smoke --set slope=2.0"
    with pytest.raises(UsageError, match="unknown study 'sample'"):
        read_run(path, {"causalrn": "normplace.lab.studies.causalrn:STUDY"})


def test_a_study_name_cannot_leave_its_folder():
    run = Run(dataclasses.replace(STUDY, name="../<b>up"), "smoke")
    assert run.result_file(Path("out")) == Path("out/.._b_up-smoke.jsonl")


def test_a_renamed_study_resumes_and_reads_its_old_file(tmp_path, monkeypatch):
    recorded = execute(tmp_path)
    renamed = dataclasses.replace(STUDY, name="renamed", aliases=("sample",))
    monkeypatch.setattr(sample, "STUDY", renamed)
    registry = {"renamed": STUDY.reference}
    assert load_study("sample", registry) is renamed
    counting = Counting()
    assert Run(renamed, "smoke").execute(tmp_path, counting, Progress(io.StringIO())) == recorded
    assert counting.ran == []
    assert read_run(tmp_path / "sample-smoke.jsonl", registry).records == recorded
    fresh = Run(renamed, "smoke").execute(tmp_path / "fresh", counting, Progress(io.StringIO()))
    assert [line.hash for line in fresh] == [line.hash for line in recorded]
    assert {line.study for line in fresh} == {"renamed"}
    assert (tmp_path / "fresh" / "renamed-smoke.jsonl").exists()


def test_lines_that_the_plan_no_longer_has_do_not_count(tmp_path):
    lines = execute(tmp_path)
    path = tmp_path / "sample-smoke.jsonl"
    with ResultFile(path) as results:
        results.append(dataclasses.replace(lines[0], hash="old", metrics={"value": -1.0}))
    assert read_run(path, REGISTRY).records == lines


def test_another_studys_file_is_left_alone(tmp_path):
    with ResultFile(tmp_path / "sample-smoke.jsonl") as results:
        results.append(TrialRecord("other", "lines", "smoke", "h", {"seed": 0}, 0, "ok"))
    with pytest.raises(UsageError, match="contains results of 'other'"):
        execute(tmp_path)


def test_unknown_names(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'laptop'"):
        Run(STUDY, "lapto")
    with pytest.raises(UsageError, match="did you mean 'sample'"):
        load_study("sampel", REGISTRY)
    with pytest.raises(UsageError, match="cannot import"):
        load_study("no_such_module_here:STUDY", REGISTRY)
    with pytest.raises(UsageError, match="is not a study"):
        load_study("tests.lab.sample:plan", REGISTRY)
    with pytest.raises(UsageError, match="did you mean 'dask'"):
        open_engine("dusk", 1)
    with pytest.raises(UsageError, match="at least 1"):
        open_engine("local", 0)
    with pytest.raises(UsageError, match="the local engine has none"):
        open_engine("local", 1, "somewhere:1")


def test_an_error_in_a_studys_own_imports_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_study.py").write_text("import a_module_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"importing 'broken_study' failed .*a_module_that_is_missing"):
        load_study("broken_study:STUDY", {})


def test_local_processes_give_the_same_lines(tmp_path):
    lines = execute(tmp_path / "local", LocalEngine(2))
    assert facts(lines) == facts(execute(tmp_path / "here"))


def test_a_worker_that_dies_once_costs_nothing(tmp_path):
    lines = execute(tmp_path, LocalEngine(2), mark=f"die:up0:{tmp_path / 'died'}")
    assert (tmp_path / "died").exists()
    assert [line.status for line in lines] == ["ok"] * 4


def test_a_trial_that_always_kills_its_worker_fails_alone(tmp_path):
    lines = execute(tmp_path, LocalEngine(2), mark="die:down0:always")
    assert [line.status for line in lines] == ["ok", "failed", "ok", "ok"]
    assert f"died {RETRIES + 1} times" in lines[1].error


def test_run_trial_is_a_pure_function_of_its_config(tmp_path):
    engine = Counting()
    execute(tmp_path, engine)
    assert facts([run_trial(engine.ran[0])]) == facts([run_trial(engine.ran[0])])


def test_progress_is_quiet_unless_someone_looks(tmp_path):
    stream = io.StringIO()
    Run(STUDY, "smoke", {}).execute(tmp_path / "a", Counting(), Progress(stream))
    assert stream.getvalue() == ""


def test_progress_shows_what_runs_and_the_time_left():
    progress = Progress(io.StringIO())
    with progress.watch("sample", ["first", "second", "third"], skipped=1):
        progress.started(0)
        progress.started(1)
        assert progress.time_left() is None
        progress.finished(0, ok=False)
        assert progress.time_left() is not None
        progress.console.width = 100
        progress.console.print(progress._view())
    shown = progress.console.file.getvalue()
    assert "2 of 4 trials" in shown
    assert "1 failed" in shown
    assert "first" not in shown
    assert [line.split()[0] for line in shown.splitlines() if "second" in line] == ["second"], "on a line of its own"


DRIVER = """
import io, sys
from pathlib import Path
from normplace.lab.trials.engines import LocalEngine
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.runner import Run
from tests.lab import sample
from tests.lab.sample import STUDY

if __name__ == "__main__":
    out = Path(sys.argv[1])
    Run(STUDY, "smoke", {"pause": 60.0, "mark": f"pid:{out}"}).execute(out, LocalEngine(2), Progress(io.StringIO()))
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_workers_end_when_their_driver_is_killed(tmp_path):
    """The orphans of a killed run must not go on computing beside the run that replaces it."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment) as driver:
        assert until(lambda: len(list(tmp_path.glob("*.pid"))) == 2, 60)
        driver.kill()
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert until(lambda: not any(alive(pid) for pid in workers), 10)
