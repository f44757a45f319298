"""Settings of the wrong type or out of range are errors."""

from __future__ import annotations

import dataclasses
import math

import pytest

from normplace.cli import main
from normplace.errors import UsageError
from normplace.lab.train.config import NetworkConfig, TrainConfig

OUT_OF_RANGE = [
    *((name, value) for name in ("context", "batch", "accumulate", "steps", "patience") for value in (0, -1)),
    *((name, 0) for name in ("evaluate_every", "evaluate_sequences", "checkpoint_every")),
    *((name, value) for name in ("learning_rate", "clip", "spike") for value in (0.0, -1.0, math.inf)),
    *((name, value) for name in ("beta1", "beta2", "warm_up") for value in (-0.1, 1.0, 7.0)),
    *((name, value) for name in ("decay", "floor") for value in (-0.1, 1.1)),
    *((name, value) for name in ("weight_decay", "peak_tflops") for value in (-0.1, math.inf)),
    *(("seed", value) for value in (-1, 2**62)),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_training_settings_out_of_range_are_errors(name, value):
    with pytest.raises(UsageError, match=rf"^{name} must be [^\n]*, got [^\n]*\.$"):
        TrainConfig(**{name: value})


@pytest.mark.parametrize("kind", [NetworkConfig, TrainConfig])
def test_values_of_the_wrong_type_are_errors(kind):
    for field in dataclasses.fields(kind):
        for value in (None, "x" if field.type != "str" else 3, [1], {}, math.nan, 1 if field.type == "bool" else True):
            if field.type == "bool" and value is True:
                continue
            with pytest.raises(UsageError, match=rf"^{field.name} takes [^\n]*, got [^\n]*\.$"):
                kind(**{field.name: value})


@pytest.mark.parametrize(("name", "value"), [("dim", 0), ("depth", -1), ("heads", 0), ("key_value_heads", -1)])
def test_network_settings_out_of_range_are_errors(name, value):
    with pytest.raises(UsageError, match=f"^{name} must be at least"):
        NetworkConfig(**{name: value})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "-1"], "seed must be at least 0"),
        (["--set", "beta1=7"], "beta1 must be at least 0 and below 1, got 7"),
        (["--set", "weight_decay=-1"], "weight_decay must be at least 0"),
        (["--rate", "inf"], "rate must be above 0 and finite, got inf"),
        (["--rate", "nan"], "rate takes a number, got nan"),
        (["--device", "meta"], "device 'meta' is not supported"),
        (["--device", "cuda:x"], "unknown device 'cuda:x'"),
        (["--device", "cpu:3"], "device 'cpu:3' does not exist"),
        (["--dim", "100000000"], "parameters needs at least"),
        (["--depth", "100000000"], "depth must be at most 100,000"),
        (["--context", "1", "--batch", "1000000000000"], "sequences of 1 tokens need at least"),
        (["--text", ""], "'' is not a text source"),
        (["--text", "x" * 5000], "(File name too long)"),
        (["--out", "a\0b"], "not a possible file name"),
    ],
)
def test_bad_options_are_one_line_errors(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("one and one are two.\n" * 200)
    assert main(["train", "--text", "text", "--context", "8", "--steps", "2", "--device", "cpu", *words]) == 2
    sentence = [line for line in capsys.readouterr().err.splitlines() if " parameters, x" not in line]
    assert len(sentence) == 1
    assert message in sentence[0]


def test_every_rank_can_add_to_the_largest_seed(tmp_path):
    assert TrainConfig(seed=2**62 - 1).seed + 4096 < 2**63
