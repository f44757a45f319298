"""Settings of ``normplace train`` from a TOML file."""

from __future__ import annotations

import json

import pytest

from normplace.cli import main
from normplace.cli.app import parse
from normplace.cli.config_file import read_config_file

SETTINGS = """
text = "text.txt"
out = "run"
log = []
signals = { every = 3 }

[network]
dim = 16
depth = 1
heads = 2

[training]
context = 8
batch = 4
steps = 3
learning-rate = 1e-2
device = "cpu"
compile = false
peak_tflops = 1
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{n} and one are {n + 1}.\n" for n in range(300)))
    (tmp_path / "run.toml").write_text(SETTINGS)


@pytest.mark.usefixtures("settings")
def test_options_have_priority_over_the_file(tmp_path, capsys):
    assert main(["train", "--config", "run.toml", "--steps", "2", "--json", "--set", "seed=5"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["network"]["dim"], result["config"]["learning_rate"]) == (16, 0.01)
    assert (result["step"], result["config"]["seed"], result["signals"]["every"]) == (2, 5, 3)
    assert (tmp_path / "run" / "result.json").is_file()


def test_a_list_a_string_and_flags(tmp_path):
    (tmp_path / "run.toml").write_text('text = ["a", "b"]\nlog = "tensorboard"\ncompile = true\nrate = 0.5\n')
    arguments = parse(["train", "--config", "run.toml"])[1].arguments
    assert (arguments["text"], arguments["log"]) == (("a", "b"), ("tensorboard",))
    training = arguments["training"]
    assert (training.compile, training.learning_rate, training.deterministic) == (True, 0.5, False)
    assert parse(["train", "--config", "run.toml", "--text", "c"])[1].arguments["text"] == ("c",)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("stepz = 3", "unknown key of run.toml: 'stepz': did you mean 'steps'?"),
        ("[training]\nwith = 3", "unknown key of run.toml: 'with': choose from"),
        ("[trainin]\nsteps = 3", "unknown key of run.toml: 'trainin': "),
        ('steps = "many"', "steps in run.toml takes a whole number, got 'many'."),
        ("steps = 2.5", "steps in run.toml takes a whole number, got 2.5."),
        ("text = [3]", "text in run.toml takes text or a tuple"),
        ("compile = 1", "compile in run.toml takes True or False, got 1."),
        ("steps = 0", "steps must be at least 1, got 0."),
        ("steps", "'run.toml' is not a TOML file"),
        ("a = '\udcff'", "'run.toml' is not a TOML file"),
    ],
)
def test_a_wrong_file_is_a_one_line_error(tmp_path, capsys, content, sentence):
    (tmp_path / "run.toml").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert main(["train", "--config", "run.toml"]) == 2
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert line.startswith(f"normplace: {sentence}")


@pytest.mark.parametrize("path", ["absent.toml", ".", "a\0b", "n" * 300])
def test_an_unreadable_file_is_a_one_line_error(capsys, path):
    assert main(["train", "--config", path]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_setting_may_be_in_the_file(tmp_path):
    (tmp_path / "run.toml").write_text(SETTINGS)
    assert read_config_file(tmp_path / "run.toml")["signals"] == ["every=3"]
