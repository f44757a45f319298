"""The file that ``normplace new study`` writes: it runs, and its report and verdicts work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.usage_errors import usage_error
from tests.own_modules import forget_modules_in

from normplace.cli import main
from normplace.cli.study_template import STUDY as TEMPLATE


@pytest.fixture(autouse=True)
def forget_imports(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    forget_modules_in(tmp_path)


def test_a_new_study_runs_and_is_reported(capsys):
    assert main(["new", "study", "norm_depth"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Wrote norm_depth.py.")
    assert "study norm_depth.py --scale smoke" in out
    assert main(["study", "norm_depth.py", "--scale", "smoke", "--jobs", "1"]) == 0
    assert "6 trials recorded in runs/norm_depth-smoke.jsonl" in capsys.readouterr().out
    assert main(["verify", "runs"]) == 0
    assert "norm_depth at scale smoke, 6 trials" in capsys.readouterr().out
    assert main(["report", "runs", "--out", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "Norm depth" in page
    assert "Without norms the variance grows with every block" in page
    assert "normplace study norm_depth.py --scale smoke" in page


def test_a_new_study_has_verdicts_at_scale_laptop(capsys, monkeypatch):
    from tests.lab.trials.in_process import Counting

    monkeypatch.setattr("normplace.lab.trials.engines.open_engine", lambda *arguments: Counting())
    main(["new", "study", "norm_depth"])
    capsys.readouterr()
    assert main(["study", "norm_depth.py", "--set", "steps=30", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["scale"], result["trials"], result["failed"]) == ("laptop", 15, {})
    assert [claim["claim"] for claim in result["claims"]] == ["error", "growth"]
    assert "not tested" not in {claim["verdict"] for claim in result["claims"]}


def test_the_template_is_a_study():
    assert [len(list(part.plan("laptop"))) for part in TEMPLATE.parts] == [15]
    assert TEMPLATE.figures([]), "its figure can be drawn before any trial has run"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["table", "norm_depth"], "unknown kind of file 'table'"),
        (["study", "norm-depth"], "letters, digits and underscores, got 'norm-depth'"),
        (["study", "../norm_depth"], "letters, digits and underscores"),
        (["study", "periln"], "called 'periln' already"),
        (["study", "torch"], "called 'torch' already"),
        (["study", "taken"], "taken.py exists already"),
    ],
)
def test_a_name_that_cannot_be_used_is_one_sentence(words, sentence, capsys):
    Path("taken.py").touch()
    assert sentence in usage_error(capsys, "new", *words)
    assert Path("taken.py").read_bytes() == b""


def test_the_file_is_written_to_another_folder(capsys):
    assert main(["new", "study", "norm_depth", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"study": "norm_depth", "file": str(Path("norm_depth.py").resolve())}
    assert main(["new", "study", "norm_depth", "--out", "some folder"]) == 0
    assert "study 'some folder/norm_depth.py'" in capsys.readouterr().out
    assert 'name="norm_depth"' in Path("some folder/norm_depth.py").read_text()
