from __future__ import annotations

import json
import re

import pytest

from normplace.cli import main
from normplace.lab.train import command

SMALL = [
    "--dim",
    "16",
    "--depth",
    "1",
    "--heads",
    "2",
    "--context",
    "8",
    "--batch",
    "4",
    "--steps",
    "6",
    "--device",
    "cpu",
]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and one are {n + 1}.\n" for n in range(300)))
    return str(path)


def test_the_help_fits_on_a_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["train", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_a_run_shows_progress_and_ends_with_its_result(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--set", "evaluate_every=3"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "finished"
    assert len(said.out.splitlines()) == 1
    lines = said.err.splitlines()
    assert re.fullmatch(r"[\d,]+ parameters, x \+ N\(F\(N\(x\)\)\); [\d,]+ tokens of .*; one process on cpu", lines[0])
    shown = (
        r"step 3/6  loss [\d.]+  gradient [\d.]+  [\d,]+ tokens/s  MFU [\d.]+%  0:00:\d\d left  held-out loss [\d.]+"
    )
    assert any(re.fullmatch(shown, line) for line in lines)
    assert main(words) == 0  # again: nothing is left to do
    assert json.loads(capsys.readouterr().out)["resumed"] == 6


def test_a_divergence_is_a_result_and_no_failure(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--rate", "1e30"]
    assert main([*words, "--set", "clip=1e30", "warm_up=0", "weight_decay=0"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "diverged"
    assert re.search(r"^The run diverged at step \d: the ", said.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--text", "absent.txt"], "there is no text 'absent.txt'"),
        (["--placement", "perry"], "did you mean 'peri'"),
        (["--context", "5000"], "need 10000 tokens of text"),
        (["--set", "positions=learned", "length=4"], "8 positions are longer than the 4"),
        (["--set", "stepz=4"], "did you mean 'steps'"),
        (["--log", "tensorbored"], "did you mean 'tensorboard'"),
        (["--accumulate", "3"], "a batch of 4 rows cannot be shared"),
        (["--steps", "many"], "invalid int value"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, text, capsys, words, complaint):
    assert main(["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (sentence,) = [line for line in said.err.splitlines() if "parameters, x" not in line]
    assert complaint in sentence


def test_another_placement_in_the_same_folder_is_refused(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--placement", "pre"]) == 2
    assert (
        "with placement peri, x + N(F(N(x))), but this is a Transformer with placement pre" in capsys.readouterr().err
    )


def test_only_the_first_process_says_what_was_wrong(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(command, "GRACE", 0.0)
    assert main(["train", "--text", "absent.txt", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == ""
