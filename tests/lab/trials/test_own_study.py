"""A user's study in a file: from any folder, read again from its results, and moved or changed in between."""

from __future__ import annotations

import dataclasses
import io
import json
import sys

import pytest
from tests.lab.trials.in_process import Counting
from tests.lab.trials.own_study import CODE

from normplace import UsageError
from normplace.cli import main
from normplace.lab.studies import STUDIES
from normplace.lab.trials.engines import LocalEngine
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.results import read_records
from normplace.lab.trials.runner import Run, read_run
from normplace.lab.trials.study import load_study


def forget(*names):
    """Forget imported modules, as a new process does."""
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]


def execute(study, out, engine=None):
    stream = io.StringIO()
    records = Run(study, "smoke").execute(out, engine or Counting(), Progress(stream))
    return records, stream.getvalue()


def test_a_file_runs_on_local_processes_and_is_found_again(own_study, tmp_path, capsys):
    study = load_study(str(own_study), STUDIES)
    records, notes = execute(study, tmp_path / "runs", LocalEngine(1))
    assert notes == ""
    assert [record.metrics for record in records[:2]] == [
        {"lifted": 42.0, "original": 1.0},
        {"lifted": 21.0, "original": 1.0},
    ]
    (source,) = {json.dumps(record.source, sort_keys=True) for record in records}
    assert json.loads(source)["folder"] == str(own_study.parent)
    assert json.loads(source)["sha256"].keys() == CODE
    forget("own_levers", "levers")
    recorded = read_run(tmp_path / "runs" / "levers-smoke.jsonl", STUDIES)
    assert recorded.records == records
    assert recorded.note is None
    assert recorded.run.command == f"normplace study {own_study} --scale smoke"


def test_a_module_of_the_current_folder_with_the_same_name_is_not_mistaken_for_it(own_study, tmp_path):
    (tmp_path / "elsewhere" / "own_levers.py").write_text("raise RuntimeError('the wrong file')\n")
    (tmp_path / "elsewhere" / "late_import.py").write_text("FACTOR = 100.0\n")
    records, _ = execute(load_study(str(own_study), STUDIES), tmp_path / "runs", LocalEngine(1))
    assert records[0].metrics["lifted"] == 42.0


@pytest.fixture
def results(own_study, tmp_path):
    """The results of a run in an earlier process."""
    execute(load_study(str(own_study), STUDIES), tmp_path / "runs")
    forget("own_levers", "levers", "late_import")
    return tmp_path / "runs" / "levers-smoke.jsonl"


def test_a_changed_file_is_named_and_still_read(own_study, results, capsys):
    (own_study.parent / "late_import.py").write_text("FACTOR = 4.0\n")
    assert main(["verify", str(results)]) == 0
    streams = capsys.readouterr()
    assert "levers at scale smoke, 4 trials" in streams.out
    assert streams.err == f"normplace: {results}: late_import.py changed after 4 recorded trials of this study ran.\n"


def test_a_run_that_resumes_with_changed_code_notes_it(own_study, results):
    own_study.write_text(own_study.read_text() + "\n# changed\n")
    records, notes = execute(load_study(str(own_study), STUDIES), results.parent)
    assert len(records) == 4
    assert "note: own_levers.py changed after 4 recorded trials of this study ran; their results are kept" in notes


def test_a_moved_file_is_named_with_the_option_to_add(own_study, results, capsys):
    moved = own_study.parent.rename(own_study.parent.with_name("renamed")) / own_study.name
    assert main(["report", str(results)]) == 2
    sentence = f"there is no {own_study}, which these results name: add --study with the file's new path."
    assert capsys.readouterr().err == f"normplace: {sentence}\n"
    assert main(["verify", str(results), "--study", str(moved)]) == 0


def test_results_alone_run_no_code(own_study, results, capsys, tmp_path, monkeypatch):
    """The user has run a study that a result file names; another user who receives both has not."""
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "the cache of another user"))
    assert main(["verify", str(results)]) == 2
    assert f"you have not run on this machine: add --study {own_study} to run its code." in capsys.readouterr().err
    assert "own_levers" not in sys.modules
    assert main(["verify", str(results), "--study", str(own_study)]) == 0


def test_a_cache_that_cannot_be_written_is_a_note(own_study, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "file"))
    records, notes = execute(load_study(str(own_study), STUDIES), tmp_path / "runs")
    assert len(records) == 4
    assert f"Later 'report' and 'verify' need --study {own_study}." in " ".join(notes.split())


def test_a_study_that_was_not_loaded_from_a_module_is_one_sentence(own_study, tmp_path):
    study = dataclasses.replace(load_study(str(own_study), STUDIES), reference="")
    with pytest.raises(UsageError, match=r"workers cannot import 'levers', .* load it with .*load_study"):
        execute(study, tmp_path / "runs")


def test_missing_data_is_one_sentence_before_any_trial_runs(own_study, tmp_path):
    (own_study.parent / "weights").rename(own_study.parent / "masses")
    with pytest.raises(UsageError, match="the study's file 'weights' does not exist"):
        execute(load_study(str(own_study), STUDIES), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_worker_that_cannot_import_the_study_is_one_sentence(own_study, tmp_path):
    study = load_study(str(own_study), STUDIES)
    own_study.write_text("import a_package_that_workers_lack\n")
    with pytest.raises(UsageError, match=r"^a worker on .* cannot import .*own_levers.py .*'a_package_that_workers"):
        execute(study, tmp_path / "runs", LocalEngine(1))
    assert read_records(tmp_path / "runs" / "levers-smoke.jsonl") == []


def test_names_that_are_not_studies(own_study, monkeypatch):
    monkeypatch.chdir(own_study.parent)
    with pytest.raises(UsageError, match=r"unknown study 'own_levers': write own_levers.py to run"):
        load_study("own_levers", STUDIES)
    assert load_study("own_levers.py:STUDY", STUDIES).name == "levers"
    with pytest.raises(UsageError, match=r"late_import.py has no study called STUDY: define one as STUDY = Study"):
        load_study("late_import.py", STUDIES)
    (own_study.parent / "renamed_study.py").write_text("from own_levers import STUDY as LEVERS\n")
    with pytest.raises(UsageError, match=r"no study called STUDY: write renamed_study.py:LEVERS"):
        load_study("renamed_study.py", STUDIES)
    with pytest.raises(UsageError, match="has the name of another study, 'levers'"):
        load_study("own_levers.py", {"levers": "elsewhere:STUDY"})


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("    seed: int\n", "", "the config of part 'lift' is not a dataclass with a field 'seed'"),
        ("for lever in LENGTHS]", "for lever in UNKNOWN]", "the plan of part 'lift' failed .NameError: name 'UNKNOWN'"),
        ("files=(", "file=(", "unexpected keyword argument 'file'"),
    ],
)
def test_mistakes_in_a_study_are_one_sentence(own_study, tmp_path, before, after, sentence):
    text = own_study.read_text()
    assert before in text
    own_study.write_text(text.replace(before, after))
    with pytest.raises(UsageError, match=sentence) as error:
        execute(load_study(str(own_study), STUDIES), tmp_path / "runs")
    assert "\n" not in str(error.value)


def test_a_trial_that_returns_no_outcome_is_a_failed_trial(own_study, tmp_path):
    text = own_study.read_text()
    own_study.write_text(text.replace('return Outcome({"lifted": lifted,', 'return ({"lifted": lifted,'))
    records, _ = execute(load_study(str(own_study), STUDIES), tmp_path / "runs")
    assert {record.status for record in records} == {"failed"}
    assert "has no attribute 'metrics'" in records[0].error
