from __future__ import annotations

import hashlib
import json
import math

import pytest
import torch
from tests.lab.train.training_cases import train_config
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.train.config import NetworkConfig, TrainConfig
from normplace.lab.train.corpus import load_corpus
from normplace.lab.train.data import held_out_sequences
from normplace.lab.train.language import train_language
from normplace.lab.train.tokenizer import learn_tokenizer
from normplace.models.transformer import load

SMALL = NetworkConfig(dim=16, depth=1, heads=2)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and one are {n + 1}.\n" for n in range(300)))
    return str(path)


def test_the_result_matches_the_saved_weights(tmp_path, text):
    result = train_language(SMALL, train_config(steps=20), tmp_path / "run", text=[text])
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert result["text"]["sha256"] == hashlib.sha256((tmp_path / "text.txt").read_bytes()).hexdigest()
    model = load(tmp_path / "run" / "model")
    rows = held_out_sequences(load_corpus([text]).held_out, 8, 8)
    with torch.no_grad():
        nats = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()
    assert result["held_out_loss"] == pytest.approx(nats, abs=1e-5)
    assert result["bits_per_byte"] == pytest.approx(nats / 0.6931471805599453, abs=1e-5)
    assert result["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert (result["status"], result["equation"], result["processes"]) == ("finished", "x + N(F(N(x)))", 1)


def test_bits_per_byte_count_the_bytes_of_the_scored_tokens(tmp_path):
    """The held-out text begins with long tokens, which alone are scored, and ends with short ones."""
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    words, digits = "one and two are three, " * 200, "7319046285" * 300
    tokenizer = learn_tokenizer(words.encode(), 270)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    held_out = words + digits
    (tmp_path / "text.txt").write_text(9 * held_out + held_out)
    config = train_config(steps=2, evaluate_sequences=4)
    name = str(tmp_path / "tokenizer.json")
    result = train_language(SMALL, config, tmp_path / "run", text=[tmp_path / "text.txt"], tokenizer=name)
    tokens = tokenizer.encode(held_out.encode())[1 : 4 * config.context + 1]
    bits = result["held_out_loss"] / math.log(2) * len(tokens)
    assert result["bits_per_byte"] == pytest.approx(bits / len(tokenizer.decode(tokens.tolist())), rel=1e-6)


def test_a_diverged_run_has_a_result_but_no_weights(tmp_path, text):
    wild = train_config(learning_rate=1e30, clip=1e30, weight_decay=0.0, warm_up=0.0)
    result = train_language(SMALL, wild, tmp_path / "run", text=[text])
    assert result["status"] == "diverged"
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert result["bits_per_byte"] is None
    assert not (tmp_path / "run" / "model").exists()


def test_the_number_of_learned_positions(tmp_path, text):
    network_config = NetworkConfig(dim=16, depth=1, heads=2, positions="learned")
    assert network_config.transformer_config(256, 8).positions.length == 8
    longer = NetworkConfig(dim=16, depth=1, heads=2, positions="learned", learned_positions=4)
    with pytest.raises(UsageError, match="8 tokens is longer than the 4 learned positions"):
        train_language(longer, train_config(), tmp_path / "run", text=[text])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"clip": 0.0}, "clip must be above 0, got 0"),
        ({"warm_up": 1.0}, "warm_up must be at least 0 and below 1"),
        ({"precision": "bfloat"}, "did you mean 'bfloat16'"),
        ({"parallel": "tensor"}, "choose from ddp, fsdp"),
        ({"schedule": "linear"}, "unknown schedule"),
    ],
)
def test_invalid_settings_are_errors(change, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig(**change)
