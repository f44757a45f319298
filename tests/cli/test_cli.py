"""The command line: output, exit codes and one-line errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.usage_errors import usage_error
from tests.lab.sample import STUDY

from normplace.cli import app, main
from normplace.cli.app import VERBS
from normplace.lab.studies import STUDIES, committed_results

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("stduy sample", "unknown command 'stduy': did you mean 'study'?"),
        ("study smaple", "unknown study 'smaple': did you mean 'sample'?"),
        ("study sample --scael smoke", "unknown option of 'normplace study': '--scael': did you mean '--scale'?"),
        ("study sample --scale smok", "unknown --scale 'smok': did you mean 'smoke'?"),
        ("study sample --set slop=1", "unknown config key 'slop': did you mean 'slope'?"),
        ("study sample --set slope=steep", "config key 'slope' takes a number, got 'steep'."),
        ("study sample --engine rya", "unknown --engine 'rya': did you mean 'ray'?"),
        ("study sample --jobs many", "--jobs takes a whole number, got 'many'"),
        ("study sample --jobs 0", "--jobs must be at least 1, got 0."),
        ("study sample --part linse", "did you mean 'lines'?"),
        ("study", "the argument STUDY is missing; see 'normplace study --help'."),
        ("verify nowhere.jsonl", "there is no nowhere.jsonl"),
        ("report nowhere", "there is no nowhere"),
        ("doctor extra", "unexpected argument 'extra'; see 'normplace doctor --help'."),
        ("study no.such.module:STUDY", "cannot import 'no.such.module': run from its folder"),
    ],
)
def test_a_usage_error_is_one_line_and_code_2(words, sentence, capsys):
    assert sentence in usage_error(capsys, *words.split())


def run_sample(*more: str) -> int:
    return main(["study", "sample", "--scale", "smoke", "--jobs", "1", *more])


def test_study_then_verify_then_report(capsys, tmp_path):
    assert main(["study", "sample", "--scale", "smoke", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "Scale smoke is a functional check and has no verdicts" in out
    assert "not tested" not in out
    assert "4 trials recorded in runs/sample-smoke.jsonl" in out
    assert main(["verify", "runs"]) == 0
    out = capsys.readouterr().out
    assert "sample at scale smoke, 4 trials in runs/sample-smoke.jsonl\n  Scale smoke is a functional check" in out
    assert "not tested" not in out
    assert "checks of" not in out
    assert main(["verify", "runs", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert [(claim["study"], claim["claim"], claim["verdict"]) for claim in claims] == [
        ("sample", "up", "not tested"),
        ("sample", "down", "not tested"),
    ]
    assert main(["report", "runs", "--out", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "Scale smoke is a functional check" in out
    assert str(tmp_path / "page.html") in out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("smoke_results")
def test_results_of_a_user_study_are_found_again(capsys, monkeypatch):
    monkeypatch.delitem(STUDIES, "sample")
    assert main(["verify", "runs"]) == 0
    assert "sample at scale smoke, 4 trials" in capsys.readouterr().out
    assert main(["verify", "runs", "--study", STUDY.reference]) == 0
    assert "sample at scale smoke, 4 trials" in capsys.readouterr().out


def test_verdicts_at_full_size(capsys):
    assert main(["study", "sample", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "  reproduced: Up goes up." in out
    assert "  not reproduced: Down goes up." in out
    assert main(["verify", "runs", "--checks"]) == 0
    out = capsys.readouterr().out
    assert "passed: value, up: 3 [1.04, 4.96], n=5; needs ≥ 0" in out
    assert "2 checks of 2 tested claims" in out


def test_a_failed_trial_shows_in_the_exit_code(capsys):
    assert run_sample("--set", "mark=fail:up1") == 1
    out = capsys.readouterr().out
    assert "3 trials recorded" in out
    assert "RuntimeError: asked to fail" in out


@pytest.mark.usefixtures("smoke_results")
def test_an_unwritable_folder_is_an_error_before_anything_runs(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot write" in usage_error(capsys, "study", "sample", "--out", "file/inside")
    assert "cannot write" in usage_error(capsys, "report", "runs", "--out", "file/page.html")


def test_a_partial_last_line_is_recovered(capsys, smoke_results):
    whole = smoke_results.read_text()
    smoke_results.write_text(whole[:-40])
    assert main(["verify", "runs"]) == 0
    assert "3 trials" in capsys.readouterr().out
    assert run_sample() == 0
    captured = capsys.readouterr()
    assert "an incomplete last line was moved" in captured.err
    assert len(smoke_results.read_text().splitlines()) == 4
    kept = smoke_results.read_text().splitlines()[:3]
    assert kept == whole.splitlines()[:3]


def test_a_file_of_another_format_is_not_changed(capsys, smoke_results):
    lines = [json.loads(text) | {"format": 99} for text in smoke_results.read_text().splitlines()]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    smoke_results.write_text(content)
    for words in (["study", "sample", "--scale", "smoke"], ["verify", "runs"], ["report", "runs"]):
        assert "results of format 99" in usage_error(capsys, *words)
    assert smoke_results.read_text() == content


def test_the_committed_results_verify(capsys):
    assert list(committed_results())
    assert main(["verify"]) == 0
    out = capsys.readouterr().out
    assert out.count("uncorrected for the number of checks") == 1
    assert len(out.splitlines()) < 20  # totals only
    readme = (ROOT / "README.md").read_text()
    counts = re.findall(
        r"docs/papers/(\w+)\.md.*\| (\d+) / (\d+) / (\d+)(?: \((\d+) void\))? \|$", readme, re.MULTILINE
    )
    assert len(counts) == 5
    for study, *checks in counts:
        assert (
            f" {'/'.join(count or '0' for count in checks)}\n"
            in out[out.index(f"{study} ") :].partition("\n")[0] + "\n"
        )
    assert main(["verify", "--only", "causalrn", "--verdict", "reproduced"]) == 0
    assert "  reproduced: " in capsys.readouterr().out


def test_without_a_command_the_help_is_printed(capsys):
    assert main(["--help"]) == 0
    asked = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == asked
    assert all(heading in asked for heading in app.GROUPS)


# Each help is printed by a fork of one process that has imported the command line and nothing else of the package.
HELP = """
import contextlib, io, json, multiprocessing, sys, time
from normplace.cli import main

def show(words, answer):
    out, err, start = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words, "--help"])
    answer.send([code, "torch" in sys.modules, out.getvalue(), err.getvalue(), time.monotonic() - start])

answers, context = [], multiprocessing.get_context("fork")
for words in json.loads(sys.argv[1]):
    receiver, answer = context.Pipe(duplex=False)
    process = context.Process(target=show, args=(words, answer))
    process.start()
    answer.close()
    answers.append(receiver.recv())
    process.join()
print(json.dumps(answers))
"""
COMMANDS = [[], *([verb] for verb in VERBS)]


@pytest.fixture(scope="module")
def helps():
    done = subprocess.run(
        [sys.executable, "-c", HELP, json.dumps(COMMANDS)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", COMMANDS)
def test_help_imports_no_torch(words, helps):
    code, torch_imported, out, err, seconds = helps[COMMANDS.index(words)]
    assert (code, torch_imported, err) == (0, False, "")
    assert out.startswith(f"Usage: {' '.join(['normplace', *words])}")
    assert seconds < 5  # about 0.1 s on an idle core; importing torch adds two seconds


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_prints_json(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_study_report_and_doctor_print_json(capsys, tmp_path):
    assert run_sample("--json", "--set", "mark=fail:up1") == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["study"], result["trials"], len(result["failed"])) == ("sample", 3, 1)
    assert [claim["verdict"] for claim in result["claims"]] == ["not tested", "not tested"]
    assert main(["report", "runs", "--out", "page.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "page.html")
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backends"][0]["name"] == "torch"


def test_help_comes_from_docstrings(capsys):
    assert main(["study", "--help"]) == 0
    assert "Rerun the command to resume" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_study_exits_with_130(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("normplace.lab.trials.engines.LocalEngine.run", interrupted)
    assert run_sample() == 130
    assert "Interrupted. Progress is saved; rerun the command to resume." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train"], "Rerun the command to resume from its newest checkpoint; without one it starts again."),
        (["audit", "model.py:build"], "normplace: Interrupted.\n"),  # nothing to resume
    ],
)
def test_an_interrupt_promises_no_more_than_was_saved(words, sentence, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    parse = app.parse
    monkeypatch.setattr(app, "parse", lambda words: (interrupted, parse(words)[1]))
    assert main(words) == 130
    assert sentence in capsys.readouterr().err


def test_the_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "normplace", "--version"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "0.1.0"
