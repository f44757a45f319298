"""``normplace verify``: filters, totals and colour."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from tests.cli.terminal import CODE, colours, terminal_output
from tests.cli.usage_errors import usage_error

from normplace.cli import main
from normplace.lab.compare.run import RESULT_FILE
from normplace.lab.trials.record import parse_line


@pytest.fixture
def results(finished_sample) -> Path:
    """A folder with results of the sample study, whose two claims have different verdicts."""
    return Path(shutil.copytree(finished_sample, "runs"))


def claims(capsys, *words: str) -> list[str]:
    assert main(["verify", "runs", "--json", *words]) == 0
    return [claim["claim"] for claim in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ["up", "down"]),
        (["--verdict", "reproduced"], ["up"]),
        (["--verdict", "not-reproduced"], ["down"]),
        (["--verdict", "not reproduced", "reproduced"], ["up", "down"]),
        (["--verdict", "Void"], []),
        (["--text", "DOWN GOES"], ["down"]),
        (["--text", "value, up"], ["up"]),
        (["--text", "goes up", "--verdict", "reproduced"], ["up"]),
        (["--text", "a\nb"], []),
        (["--only", "sample"], ["up", "down"]),
    ],
)
def test_filters(words, shown, results, capsys):
    assert claims(capsys, *words) == shown
    assert main(["verify", "runs", *words]) == 0
    out = capsys.readouterr().out
    assert ("Up goes up." in out, "Down goes up." in out) == ("up" in shown, "down" in shown)
    assert ("No claim has these properties." in out) == (not shown)
    assert main(["verify", "runs", "--markdown", *words]) == 0
    assert f"{len(shown)} claims: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only", "smaple"], "unknown study among these results: 'smaple': did you mean 'sample'?"),
        (["--only", "postdeg"], "unknown study among these results: 'postdeg'"),
        (["--verdict", "reproducd"], "unknown verdict 'reproducd': did you mean 'reproduced'?"),
        (["--verdict", ""], "unknown verdict ''"),
    ],
)
def test_an_unknown_name_is_one_sentence(words, sentence, results, capsys):
    assert sentence in usage_error(capsys, "verify", "runs", *words)


def test_only_one_study_of_the_package(capsys):
    assert main(["verify", "--only", "deepergcn", "--json"]) == 0
    assert {claim["study"] for claim in json.loads(capsys.readouterr().out)} == {"deepergcn"}


def test_totals_count_each_claim_once(results, capsys):
    assert main(["verify", "runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    index = next(number for number, line in enumerate(lines) if line.startswith("study "))
    assert lines[index].split("  ")[-1].strip() == "checks passed/open/failed/void"
    assert lines[index + 1].split() == ["sample", "laptop", "2", "1", "1", "1/0/1/0"]
    assert lines[index + 2].startswith("2 checks of 2 tested claims: 1 passed, 0 open, 1 failed, 0 void.")
    assert main(["study", "sample", "--scale", "full", "--jobs", "1"]) == 0
    capsys.readouterr()
    assert main(["verify", "runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == ["total", "largest", "2", "1", "1", "1/0/1/0"]
    assert lines[-1].startswith("2 checks of 2 tested claims")


def test_totals_that_are_wider_than_the_terminal_are_a_list(results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = terminal_output(monkeypatch, "verify", "runs", no_color="1").splitlines()
    index = lines.index("sample, laptop scale: 2 claims")
    assert lines[index + 1 : index + 3] == [
        "  1 reproduced, 1 not reproduced",
        "  checks: 1 passed, 0 open, 1 failed, 0 void",
    ]


def test_checks_that_passed_are_listed_on_request(results, capsys):
    assert main(["verify", "runs"]) == 0
    out = capsys.readouterr().out
    assert "    failed: value, down" in out and "    passed: value, up" not in out
    assert main(["verify", "runs", "--checks"]) == 0
    assert "    passed: value, up" in capsys.readouterr().out


def test_the_committed_claims_are_listed_on_request(capsys):
    assert main(["verify", "--only", "causalrn"]) == 0
    short = capsys.readouterr().out
    assert "more claims, which --checks lists" in short and "'normplace verify --only STUDY'" not in short
    assert main(["verify", "--only", "causalrn", "--checks"]) == 0
    whole = capsys.readouterr().out
    assert "  not tested: " in whole and len(whole) > 2 * len(short)


def test_failed_trials_are_counted(results, capsys):
    (path,) = results.glob("*.jsonl")
    *lines, last = path.read_text().splitlines()
    failed = dataclasses.replace(parse_line(last.encode()), status="failed", metrics={}, series={}, error="no memory")
    path.write_text("\n".join([*lines, failed.to_json(), ""]))
    assert main(["verify", "runs"]) == 0
    assert "  1 of the trials failed, so claims count only the others." in capsys.readouterr().out.splitlines()


def test_chance_is_not_computed_for_claims_chosen_by_verdict(results, capsys):
    assert main(["verify", "runs", "--verdict", "reproduced"]) == 0
    assert "by chance" not in capsys.readouterr().out


def test_verdicts_have_colour_on_a_terminal(results, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    text = terminal_output(monkeypatch, "verify", "runs")
    assert "  \x1b[32mreproduced\x1b[0m: Up goes up." in text
    assert "  \x1b[31mnot reproduced\x1b[0m: Down goes up." in text
    main(["verify", "runs"])
    assert CODE.sub("", text) == capsys.readouterr().out
    assert colours(terminal_output(monkeypatch, "verify", "runs", no_color="1")) == set()


@pytest.mark.parametrize("verb", ["verify", "report"])
def test_results_of_a_comparison_belong_to_another_command(verb, capsys):
    Path("runs").mkdir()
    Path("runs", RESULT_FILE).write_text("")
    assert "runs has results of normplace compare: run that command again" in usage_error(capsys, verb, "runs")
