"""Running studies: resume, failures, overrides, and the three engines."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.lab import sample
from tests.lab.sample import STUDY, reproducible
from tests.lab.trials.in_process import Counting

from normplace import UsageError
from normplace.lab.trials.engines import RETRIES, LocalEngine, open_engine, visible_gpus
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.results import ResultFile, TrialRecord, read_records
from normplace.lab.trials.runner import Run, read_run
from normplace.lab.trials.study import load_study
from normplace.lab.trials.trial import run_trial

REGISTRY = {"sample": STUDY.reference}


def execute(out, engine=None, scale="smoke", **overrides):
    return Run(STUDY, scale, overrides).execute(out, engine or Counting(), Progress(io.StringIO()))


def test_a_second_run_has_nothing_to_do(tmp_path):
    first = execute(tmp_path)
    again = Counting()
    assert execute(tmp_path, again) == first
    assert again.ran == []
    assert len(read_records(tmp_path / "sample-smoke.jsonl")) == 4


def test_a_record_has_configuration_versions_and_hardware(tmp_path):
    record = execute(tmp_path)[0]
    assert record.config == {"kind": "up", "seed": 0, "slope": 1.0, "pause": 0.0, "mark": ""}
    assert {"normplace", "python", "torch", "numpy"} <= record.versions.keys()
    assert {"cpu", "cores", "memory_gb"} <= record.hardware.keys()
    assert record.finished.endswith("+00:00")


def test_a_failed_trial_is_recorded_and_retried(tmp_path):
    records = execute(tmp_path, mark="fail:up1")
    assert [record.status for record in records] == ["ok", "ok", "failed", "ok"]
    assert "asked to fail" in records[2].error
    again = Counting()
    execute(tmp_path, again, mark="fail:up1")
    assert [trial.config["seed"] for trial in again.ran] == [1]


def test_an_unavailable_trial_is_skipped_with_a_note(tmp_path):
    part = dataclasses.replace(
        STUDY.parts[0], unavailable_reason=lambda trial: "there is no down here." if trial.kind == "down" else None
    )
    study = dataclasses.replace(STUDY, parts=(part,))
    stream, engine = io.StringIO(), Counting()
    records = Run(study, "smoke").execute(tmp_path, engine, Progress(stream))
    assert [record.config["kind"] for record in records] == ["up", "up"]
    assert stream.getvalue() == "note: skipped 2 trials of part 'lines': there is no down here.\n"
    whole = Counting()
    assert len(Run(STUDY, "smoke").execute(tmp_path, whole, Progress(io.StringIO()))) == 4
    assert [trial.config["kind"] for trial in whole.ran] == ["down", "down"]
    again = Run(study, "smoke").execute(tmp_path, Counting(), Progress(stream := io.StringIO()))
    assert len(again) == 4
    assert stream.getvalue() == ""


def test_overrides_have_a_separate_file(tmp_path):
    execute(tmp_path)
    records = execute(tmp_path, slope=2.0)
    assert records[0].metrics == {"value": 2.0}
    assert records[0].overrides == {"slope": 2.0}
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    with pytest.raises(UsageError, match="make two trials of 'sample' equal"):
        execute(tmp_path, kind="up")
    with pytest.raises(UsageError, match="seed is part of the plan"):
        execute(tmp_path, seed=1)


def test_a_result_file_is_read_as_its_run(tmp_path):
    records = execute(tmp_path, slope=2.0)
    (path,) = tmp_path.glob("*.jsonl")
    recorded = read_run(path, REGISTRY)
    assert recorded.records == records
    assert recorded.damaged == []
    assert recorded.run.command == "normplace study tests.lab.sample:STUDY --scale smoke --set slope=2.0"


def test_results_without_a_source_need_a_registered_study(tmp_path):
    with ResultFile(tmp_path / "old.jsonl") as results:
        results.append(TrialRecord("sample", "lines", "smoke", "h", {"seed": 0}, 0, "ok"))
    with pytest.raises(UsageError, match="unknown study 'sample'"):
        read_run(tmp_path / "old.jsonl", {"causalrn": "normplace.lab.studies.causalrn:STUDY"})


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
    assert [record.hash for record in fresh] == [record.hash for record in recorded]
    assert {record.study for record in fresh} == {"renamed"}
    assert (tmp_path / "fresh" / "renamed-smoke.jsonl").exists()


def test_records_outside_the_plan_are_ignored(tmp_path):
    records = execute(tmp_path)
    path = tmp_path / "sample-smoke.jsonl"
    with ResultFile(path) as results:
        results.append(dataclasses.replace(records[0], hash="old", metrics={"value": -1.0}))
    assert read_run(path, REGISTRY).records == records


def test_the_file_of_another_study_is_not_changed(tmp_path):
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
    with pytest.raises(UsageError, match="the local engine has no --address"):
        open_engine("local", 1, "somewhere:1")


def test_an_error_in_a_studys_own_imports_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_study.py").write_text("import a_module_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"importing 'broken_study' failed .*a_module_that_is_missing"):
        load_study("broken_study:STUDY", {})


@pytest.fixture(scope="module")
def two_processes():
    with closing(LocalEngine(2)) as engine:
        yield engine


def test_local_processes_give_the_same_records(two_processes, tmp_path):
    records = execute(tmp_path / "local", two_processes)
    assert reproducible(records) == reproducible(execute(tmp_path / "here"))


def test_a_trial_is_retried_if_its_worker_dies(two_processes, tmp_path):
    records = execute(tmp_path, two_processes, mark=f"die:up0:{tmp_path / 'died'}")
    assert (tmp_path / "died").exists()
    assert [record.status for record in records] == ["ok"] * 4


def test_a_trial_that_always_kills_its_worker_fails_alone(two_processes, tmp_path):
    records = execute(tmp_path, two_processes, mark="die:down0:always")
    assert [record.status for record in records] == ["ok", "failed", "ok", "ok"]
    assert f"died {RETRIES + 1} times" in records[1].error


def test_local_processes_are_kept_until_the_engine_is_closed(tmp_path):
    engine = LocalEngine(1)
    for run in ("first", "second"):
        execute(tmp_path / run, engine, mark=f"pid:{tmp_path}")
    (pid,) = (int(path.stem) for path in tmp_path.glob("*.pid"))
    os.kill(pid, 0)
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_local_processes_take_turns_over_the_gpus():
    with closing(LocalEngine(3, gpus=["5", "7"])) as engine:
        results = engine.run(os.getenv, ["CUDA_VISIBLE_DEVICES"] * 3, lambda index: None)
        assert sorted(gpu for _, gpu in results) == ["5", "5", "7"]


@pytest.mark.parametrize(("names", "gpus"), [(None, ["0", "1"]), ("3,GPU-8a,5", ["3", "GPU-8a"]), ("", [])])
def test_visible_gpus_are_named_as_the_environment_names_them(monkeypatch, names, gpus):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0 if names == "" else 2)
    assert visible_gpus() == gpus


def test_run_trial_is_a_pure_function_of_its_config(tmp_path):
    engine = Counting()
    execute(tmp_path, engine)
    assert reproducible([run_trial(engine.ran[0])]) == reproducible([run_trial(engine.ran[0])])


def test_progress_is_not_drawn_without_a_terminal(tmp_path):
    stream = io.StringIO()
    Run(STUDY, "smoke", {}).execute(tmp_path / "a", Counting(), Progress(stream))
    assert stream.getvalue() == ""


def test_progress_shows_running_trials_and_the_time_left():
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
    assert [line.split()[0] for line in shown.splitlines() if "second" in line] == ["second"], "on a separate line"


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


def test_workers_exit_when_their_parent_is_killed(tmp_path):
    """The orphans of a killed run must not go on computing beside the run that replaces it."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment) as driver:
        assert until(lambda: len(list(tmp_path.glob("*.pid"))) == 2, 60)
        driver.kill()
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert until(lambda: not any(alive(pid) for pid in workers), 10)


def with_run_seeds(monkeypatch, run_seeds, seeds_at_once=2, may_differ=()):
    """The sample study with a part that computes several seeds at once, also where workers import it."""
    settings = {"run_seeds": run_seeds, "seeds_at_once": seeds_at_once, "may_differ": may_differ}
    study = dataclasses.replace(STUDY, parts=(dataclasses.replace(STUDY.parts[0], **settings),))
    monkeypatch.setattr(sample, "STUDY", study)
    return study


def test_seeds_of_a_variant_run_at_once_where_a_part_computes_them_together(tmp_path, monkeypatch):
    calls = []

    def run_seeds(trials):
        calls.append([(trial.kind, trial.seed) for trial in trials])
        return [sample.run(trial) for trial in trials]

    alone = reproducible(execute(tmp_path / "alone"))
    study = with_run_seeds(monkeypatch, run_seeds)
    records = Run(study, "smoke").execute(tmp_path, Counting(), Progress(io.StringIO()))
    assert calls == [[("up", 0), ("up", 1)], [("down", 0), ("down", 1)]]
    assert reproducible(records) == alone
    more = Run(study, "smoke", seeds=5).execute(tmp_path, Counting(), Progress(io.StringIO()))
    assert calls[2:] == [[("up", 2), ("up", 3)], [("down", 2), ("down", 3)]]  # the fifth seed of each runs alone
    assert len(more) == 10


def test_variants_run_at_once_where_a_part_permits_it(tmp_path, monkeypatch):
    calls = []

    def run_seeds(trials):
        calls.append([(trial.kind, trial.seed) for trial in trials])
        return [sample.run(trial) for trial in trials]

    alone = reproducible(execute(tmp_path / "alone"))
    study = with_run_seeds(monkeypatch, run_seeds, 3, ("kind",))
    records = Run(study, "smoke").execute(tmp_path, Counting(), Progress(io.StringIO()))
    assert calls == [[("up", 0), ("down", 0), ("up", 1)]]  # the fourth trial runs alone
    assert reproducible(records) == alone


def test_an_exception_fails_every_trial_of_its_group(tmp_path, monkeypatch):
    def run_seeds(trials):
        raise RuntimeError("asked to fail")

    study = with_run_seeds(monkeypatch, run_seeds)
    records = Run(study, "smoke").execute(tmp_path, Counting(), Progress(io.StringIO()))
    assert [record.status for record in records] == ["failed"] * 4
    assert all("asked to fail" in record.error for record in records)
