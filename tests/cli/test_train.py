"""``normplace train``: progress, results and errors."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
from tests.cli.terminal import terminal_output
from torch.distributed.run import parse_args

from normplace.cli import app, main
from normplace.cli.train import train

SIZES = {"dim": 16, "depth": 1, "heads": 2, "context": 8, "batch": 4, "steps": 6}
SMALL = ["--device", "cpu", *(word for name, value in SIZES.items() for word in (f"--{name}", str(value)))]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and one are {n + 1}.\n" for n in range(300)))
    return str(path)


def test_the_help_fits_100_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["train", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 64
    assert max(map(len, lines)) <= 100


def test_a_run_shows_progress_and_ends_with_its_result(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--set", "evaluate_every=3"]
    assert main(words) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["status"] == "finished"
    assert len(output.out.splitlines()) == 1
    start, *lines = output.err.splitlines()
    assert re.fullmatch(r"[\d,]+ parameters, x \+ N\(F\(N\(x\)\)\); [\d,]+ tokens of .*; one process on cpu", start)
    speed = r"[\d,]+ tokens/s  MFU [\d.]+%  0:00:\d\d left"
    shown = rf"step 3/6  loss [\d.]+  gradient norm [\d.]+  {speed}  held-out loss [\d.]+"
    assert any(re.fullmatch(shown, line) for line in lines)


def test_a_finished_run_keeps_its_result(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    content = (tmp_path / "run" / "result.json").read_bytes()
    assert main([*words, "--evaluate-sequences", "2"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == result
    assert "The run had finished at step 6; nothing is left to do." in output.err
    assert (tmp_path / "run" / "result.json").read_bytes() == content


def test_a_raised_number_of_steps_extends_the_run(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--schedule", "constant"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert main([*words, "--steps", "9"]) == 0
    output = capsys.readouterr()
    assert "Resumed at step 6." in output.err
    assert json.loads(output.out)["resumed_from"] == 6
    assert json.loads((tmp_path / "run" / "result-6.json").read_text()) == result
    assert main([*words, "--steps", "9", "--schedule", "cosine"]) == 2


def test_divergence_is_a_result_and_not_a_failure(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--rate", "1e30"]
    assert main([*words, "--set", "clip=1e30", "warm_up=0", "weight_decay=0"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["status"] == "diverged"
    assert re.search(r"^The run diverged at step \d: the ", output.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--text", "absent.txt"], "there is no text 'absent.txt'"),
        (["--placement", "perry"], "did you mean 'peri'"),
        (["--context", "5000"], "needs 10000 tokens of text"),
        (["--set", "positions=learned", "length=4"], "8 tokens is longer than the 4 learned positions"),
        (["--set", "stepz=4"], "did you mean 'steps'"),
        (["--log", "tensorbored"], "did you mean 'tensorboard'"),
        (["--accumulate", "3"], "a batch of 4 sequences cannot be split evenly"),
        (["--steps", "many"], "--steps takes a whole number, got 'many'"),
        (["--signals", "evry=5"], "did you mean 'every'"),
        (["--out", "text.txt"], "text.txt is not a folder; choose another --out"),
        (["--out", "text.txt/run"], "text.txt is not a folder; choose another --out"),
    ],
)
def test_bad_input_is_a_one_line_error(tmp_path, text, capsys, words, complaint):
    assert main(["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, *words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (sentence,) = output.err.splitlines()
    assert complaint in sentence


def test_another_placement_in_the_same_folder_is_an_error(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--placement", "pre"]) == 2
    assert (
        "with placement peri, x + N(F(N(x))), but this is a Transformer with placement pre" in capsys.readouterr().err
    )


def test_only_the_first_process_prints_an_error(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(app, "SECONDS_FOR_FIRST_PROCESS", 0.0)
    for words in (["--text", "absent.txt"], ["--steps", "0"]):
        assert main(["train", "--device", "cpu", *words]) == 2
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", ["--learning-rate", "--lr", "--rate"])
def test_the_learning_rate_has_a_short_and_an_earlier_option(tmp_path, text, capsys, option):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--steps", "1", "--json"]
    assert main([*words, option, "0.25"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["config"]["learning_rate"] == 0.25
    assert output.err == ""


def test_settings_are_found_by_their_earlier_names(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--steps", "1"]
    assert main([*words, "--set", "rate=0.5", "evaluate_rows=3"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["learning_rate"], config["evaluate_sequences"]) == (0.5, 3)


def test_signals_are_printed_as_bars(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--signals", "every=3"]
    assert main(words) == 0
    number = r"[\d.e+-]+"
    bars = rf"[▁▂▃▄▅▆▇█]+ {number} to {number}"
    shown = rf"signals at step (\d)  variance {bars}  peak {bars}  gradient {bars}  fp16 headroom [\d.]+ doublings"
    assert re.findall(shown, capsys.readouterr().err) == ["0", "3", "6"]


def test_the_signals_have_a_default(tmp_path, text, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--json", "--signals"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["signals"] == {"every": 200, "sequences": 4}


def test_a_terminal_gets_a_live_bar(tmp_path, text, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL, "--signals", "every=6"]
    assert main(words) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert re.search(r"step 6/6 ━+ +loss [\d.]+ +[\d,]+ tokens/s +0:00:\d\d left", shown)
    assert re.search(r"(^|\r)signals at step 6  variance", shown, re.MULTILINE)
    assert re.search(r"(^|\r)step 6/6  loss .* held-out loss", shown, re.MULTILINE)


def test_torchrun_passes_the_options_on():
    words = ["train", "--signals", "every=3", "--log", "tensorboard", "--config", "run.toml"]
    arguments = parse_args(["--nproc-per-node", "2", "-m", "--", "normplace", *words])
    assert arguments.training_script == "normplace"
    assert arguments.training_script_args == words
    assert "torchrun --nproc-per-node 2 -m -- normplace train" in (train.__doc__ or "")


def test_a_person_gets_sentences_and_no_json(tmp_path, text, monkeypatch, capsys):
    words = ["train", "--text", text, "--out", str(tmp_path / "run"), *SMALL]
    assert terminal_output(monkeypatch, *words) == ""
    assert "bits per byte of held-out text" in capsys.readouterr().err
    assert json.loads(terminal_output(monkeypatch, *words, "--json"))["status"] == "finished"
