"""``normplace generate``, ``export`` and ``evaluate`` on the run of ``normplace train``."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from normplace.cli import main
from normplace.lab.train.config import NetworkConfig, TrainConfig
from normplace.lab.train.language import train_language


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("".join(f"{n} and one are {n + 1}, not two or all.\n" for n in range(400)))
    config = TrainConfig(context=16, batch=4, steps=4, device="cpu", peak_tflops=1.0, evaluate_sequences=4)
    train_language(NetworkConfig(dim=16, depth=1, heads=2), config, folder / "run", text=folder / "text.txt")
    return folder


@pytest.fixture
def run(trained):
    return str(trained / "run")


def generated(capsys, *words):
    assert main(["generate", *words, "--device", "cpu"]) == 0
    return capsys.readouterr().out


def test_a_prompt_is_continued_by_the_seed(run, capsys):
    words = [run, "--prompt", "one and ", "--length", "12"]
    first, again, other = (generated(capsys, *words, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert first != other
    assert first.startswith("one and ")
    greedy = {generated(capsys, *words, "--temperature", "0", "--seed", seed) for seed in ("1", "2")}
    assert len(greedy) == 1
    assert generated(capsys, *words, "--top-k", "1") in greedy
    fitting = [*words[1:], "--temperature", "0", "--length", "8"]
    assert generated(capsys, run, *fitting) == generated(capsys, f"{run}/model", *fitting)


def test_json_and_a_prompt_from_standard_input(run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one and "))
    result = json.loads(generated(capsys, run, "--prompt", "-", "--length", "5", "--json"))
    assert (result["prompt"], result["tokens"], result["seed"]) == ("one and ", 5, 0)
    assert 1 <= len(result["text"]) <= 5
    assert generated(capsys, run, "--prompt", "one and ", "--length", "5") == f"one and {result['text']}\n"


def test_the_model_reads_as_many_tokens_as_in_training(run, capsys):
    shared = " are 7, not two."
    texts = []
    for prompt in (f"one and{shared}", f"all but{shared}"):
        assert main(["generate", run, "--prompt", prompt, "--length", "9", "--device", "cpu"]) == 0
        output = capsys.readouterr()
        texts.append(output.out.removeprefix(prompt))
        assert output.err == "The prompt has 23 tokens; the model reads the last 16, as in training.\n"
    assert texts[0] == texts[1]


def test_a_closed_standard_input_is_an_empty_prompt(run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate", run, "--prompt", "-"]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


def test_learned_positions_do_not_limit_the_text(trained, tmp_path, capsys):
    config = TrainConfig(context=16, batch=4, steps=1, device="cpu", peak_tflops=1.0, evaluate_sequences=4)
    network = NetworkConfig(dim=16, depth=1, heads=2, positions="learned")
    train_language(network, config, tmp_path / "run", text=trained / "text.txt")
    result = json.loads(generated(capsys, str(tmp_path / "run"), "--length", "40", "--json"))
    assert result["tokens"] == 40


def test_the_text_is_printed_token_by_token(run, monkeypatch):
    written = []

    class Stream(io.StringIO):
        def write(self, text):
            written.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stdout", Stream())
    assert main(["generate", run, "--prompt", "one", "--length", "6", "--device", "cpu"]) == 0
    assert len([text for text in written if text]) >= 4
    assert written[0] == "one"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--length", "0"], "length must be at least 1"),
        (["--temperature", "-1"], "temperature must be zero, or at least"),
        (["--temperature", "0", "--top-k", "3"], "top_k and top_p need sampling"),
        (["--prompt", ""], "the prompt is empty"),
        (["--seed", "-1"], "seed must be at least 0"),
    ],
)
def test_wrong_settings_are_one_line_errors(run, capsys, words, sentence):
    assert main(["generate", run, "--device", "cpu", *words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert len(output.err.splitlines()) == 1


@pytest.mark.parametrize("verb", [["generate"], ["evaluate"], ["export", "--hf", "out"]])
def test_a_missing_run_is_a_one_line_error(verb, capsys):
    assert main([*verb, "nowhere"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "normplace: there is no run in 'nowhere': name the --out folder of 'normplace train'.\n"


def test_evaluate_prints_a_table_or_json(run, capsys):
    words = ["evaluate", run, "--device", "cpu", "--samples", "20"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "metric", "value", "baseline", "samples"]
    assert [line.split()[0] for line in lines[1:]] == ["held-out", "cloze", "copy", "copy"]
    assert main([*words, "--tasks", "cloze", "--json"]) == 0
    (score,) = json.loads(capsys.readouterr().out)
    assert (score["task"], score["metric"], score["baseline"], score["samples"]) == ("cloze", "accuracy", 0.25, 20)


def test_a_probe_that_fails_costs_no_other_score(run, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("7 and 8\n" * 40)
    words = ["evaluate", run, "--text", "other.txt", "--device", "cpu", "--samples", "4"]
    for form in ([], ["--json"]):
        assert main([*words, *form]) == 2
        output = capsys.readouterr()
        assert "which cloze needs: give more text, or choose other tasks.\n" in output.err
        names = [score["task"] for score in json.loads(output.out)] if form else output.out.split()
        assert [name for name in names if name in {"held-out", "cloze", "copy"}] == ["held-out", "copy", "copy"]


def test_evaluate_on_other_and_on_changed_text(trained, tmp_path, capsys):
    shutil.copytree(trained / "run", tmp_path / "run")
    words = ["evaluate", str(tmp_path / "run"), "--tasks", "held-out", "--device", "cpu", "--json"]
    (tmp_path / "other.txt").write_text("not and all, two or one are.\n" * 40)
    assert main([*words, "--text", "other.txt"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["samples"] == 40 * 29 // 16  # all of the text
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result["text"]["sha256"] = "0" * 64
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    assert main(words) == 2
    assert "the text of the run has changed (SHA-256 000000000000…, now " in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--device", "cpu"]) == 2
    assert "the text of the run is not known: name a text" in capsys.readouterr().err


def test_export_prints_model_and_difference(run, tmp_path, capsys):
    pytest.importorskip("transformers.models.hyperclovax", reason="needs a transformers that has HyperCLOVA X")
    assert main(["export", run, "--hf", "out"]) == 0
    output = capsys.readouterr()
    assert f"HyperCLOVAXForCausalLM, 7,504 parameters: {tmp_path / 'out'}\n" in output.out
    assert output.err == ""
    assert main(["export", run, "--hf", "out", "--json"]) == 2
    assert capsys.readouterr().err == "normplace: out already exists: remove it, or choose another --hf.\n"
