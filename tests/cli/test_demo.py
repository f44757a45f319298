"""The demo: an audit and a move at once, a part of every study that has one, and one page."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.cli.demo_study import STUDY
from tests.lab.trials.in_process import Counting

from normplace.cli import main
from normplace.cli.program import program
from normplace.lab.studies import STUDIES
from normplace.lab.trials.results import read_records


class Interruptible(Counting):
    """An engine in this process that can be interrupted."""

    interrupt_at: int | None = None

    def run(self, function, items, started):
        for result in super().run(function, items, started):
            if len(self.ran) == self.interrupt_at:
                raise KeyboardInterrupt
            yield result


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """The engine of a demo with one study that takes no time; the sample study has no demo."""
    for name in list(STUDIES):
        if name != "sample":
            monkeypatch.delitem(STUDIES, name)
    monkeypatch.setitem(STUDIES, "shown", STUDY.reference)
    engine = Interruptible()
    monkeypatch.setattr("normplace.lab.trials.engines.open_engine", lambda *_: engine)
    return engine


def test_the_demo_audits_moves_measures_and_writes_a_page(capsys):
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    parts = [
        "== Audit a model",
        "TransformerEncoder: placement 'post'; 8 norms in use, 8 residual blocks.",
        "== Move its norms",
        "post -> peri",
        "== Study 1 of 1: A sample (shown)",
        "published  slope 3 (Table 9)",
        "normplace  slope 1.5 (2 seeds)",
        "     demo  Two of five seeds.",
        "   claims  2 not tested",
        "== The report",
        "report.html",
        "Try next:\n  normplace study",
    ]
    positions = [out.find(part) for part in parts]
    assert -1 not in positions
    assert positions == sorted(positions)
    assert "A sample" in Path("runs/report.html").read_text()


def test_the_printed_model_is_the_audited_one(capsys):
    from torch import nn

    from normplace.cli.demo import MODEL, encoder

    assert repr(eval(MODEL, {"nn": nn})) == repr(encoder()[0])


def test_the_demo_runs_its_trials_once_and_the_study_the_others(engine, capsys):
    assert main(["demo"]) == main(["demo"]) == 0
    assert len(engine.ran) == 4
    assert main(["study", "shown"]) == 0
    assert len(engine.ran) == 10
    assert len(read_records(Path("runs/shown-laptop.jsonl"))) == 10
    capsys.readouterr()
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "slope 3.0 (5 seeds)" in out
    assert "-  reproduced: Up goes up." in out
    assert len(engine.ran) == 10


def test_an_interrupted_demo_resumes(engine, capsys):
    engine.interrupt_at = 3
    assert main(["demo"]) == 130
    assert "rerun the command to resume" in capsys.readouterr().err
    engine.interrupt_at = None
    assert main(["demo"]) == 0
    assert len(engine.ran) == 3 + 2  # two trials were recorded before the interruption


def test_a_failed_trial_is_named_and_the_exit_code_is_1(monkeypatch, capsys):
    monkeypatch.setattr("tests.lab.sample.time.sleep", lambda seconds: 1 / 0)
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert out.count("ZeroDivisionError: division by zero") == 4
    assert "normplace  not measured" in out


def test_a_study_that_cannot_run_here_is_left_out_of_the_page(monkeypatch, capsys):
    part = dataclasses.replace(STUDY.parts[0], unavailable_reason=lambda trial: "this study needs a package.")
    other = dataclasses.replace(STUDY, name="other", title="Another", parts=(part,), reference="tests.cli.other:STUDY")
    module = ModuleType("tests.cli.other")
    module.__dict__["STUDY"] = other
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(STUDIES, "other", other.reference)
    assert main(["demo"]) == 0
    captured = capsys.readouterr()
    assert "skipped 4 trials of part 'lines': this study needs a package." in captured.err
    assert "normplace  no trial of this study can run here" in captured.out
    page = Path("runs/report.html").read_text()
    assert "A sample" in page
    assert "Another" not in page


def test_json_is_alone_on_standard_output(capsys, tmp_path):
    assert main(["demo", "--json", "--out", "there"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    (study,) = result["studies"]
    assert (study["study"], study["trials"], study["measured"]) == ("shown", 4, "slope 1.5 (2 seeds)")
    assert study["claims"] == {"up": "not tested", "down": "not tested"}
    assert result["report"] == str(tmp_path / "there" / "report.html")
    assert result["model"]["audit"]["placement"] == "post"
    assert "== Audit a model" in captured.err


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_runs(engine, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["demo", "--out", "file/inside"]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert engine.ran == []


@pytest.mark.parametrize(
    ("started", "on_path", "words"),
    [
        ("{here}/.venv/bin/normplace", None, ".venv/bin/normplace"),
        (".venv/bin/normplace", "/elsewhere/normplace", ".venv/bin/normplace"),
        ("{here}/.venv/bin/normplace", "{here}/.venv/bin/normplace", "normplace"),
        ("/opt/with space/bin/normplace", None, "'/opt/with space/bin/normplace'"),
        ("/lib/normplace/__main__.py", None, ".venv/bin/python -m normplace"),
        ("/lib/pytest/__main__.py", None, "normplace"),
    ],
)
def test_printed_commands_start_as_the_user_did(started, on_path, words, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", [started.format(here=tmp_path)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.setattr("shutil.which", lambda name: on_path and on_path.format(here=tmp_path))
    assert program() == words
