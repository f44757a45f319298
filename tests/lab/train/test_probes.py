"""Probes of networks whose scores are known."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from tests.lab.train.trained_runs import untrained_run
from torch import nn

from normplace.errors import UsageError
from normplace.lab.train.data import spread_sequences
from normplace.lab.train.evaluate import evaluate_run
from normplace.lab.train.probes import PROBES, HeldOutText
from normplace.lab.train.scoring import Scorer
from normplace.lab.train.tokenizer import learn_tokenizer

WORDS = ["apple", "grape", "lemon", "mango", "peach", "melon"]


def text(words=4000):
    rng = random.Random(0)
    content = " ".join(rng.choice(WORDS) for _ in range(words)) + " "
    return HeldOutText(np.frombuffer(content.encode(), np.uint8), 1.0)


class Copier(nn.Module):
    """Predicts the byte that followed the last occurrence of the latest ``order`` bytes, and else all bytes alike."""

    def __init__(self, order=6):
        super().__init__()
        self.order, self.config = order, untrained_run().model.config

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, 256)
        for row, tokens in enumerate(ids.tolist()):
            seen = {}
            for end in range(1, len(tokens) + 1):
                key = tuple(tokens[max(0, end - self.order) : end])
                if key in seen:
                    logits[row, end - 1, seen[key]] = 20.0
                if end < len(tokens) and len(key) == self.order:
                    seen[key] = tokens[end]
        return logits


class Fixed(nn.Module):
    """Prefers the bytes of one word after a space, and else all bytes alike."""

    def __init__(self, word):
        super().__init__()
        self.word, self.config = word.encode(), untrained_run().model.config

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, 256)
        for row, tokens in enumerate(ids.tolist()):
            for end in range(1, len(tokens) + 1):
                start = next((back for back in range(len(self.word)) if tokens[end - 1 - back] == 32), None)
                if start is not None:
                    logits[row, end - 1, self.word[start]] = 5.0
        return logits


def scorer(model, context=48):
    run = untrained_run(context)
    object.__setattr__(run, "model", model)
    return Scorer(run, torch.device("cpu"))


class Uniform(nn.Module):
    """Predicts all tokens alike."""

    def __init__(self, vocab_size):
        super().__init__()
        self.vocab_size, self.config = vocab_size, untrained_run().model.config

    def forward(self, ids):
        return torch.zeros(*ids.shape, self.vocab_size)


def test_bits_per_byte_count_the_bytes_of_the_scored_tokens(tmp_path):
    """The first nine tenths of the text have longer tokens than the rest."""
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    words, digits = b"apple grape lemon mango peach melon\n" * 250, b"7319046285" * 100
    tokenizer = learn_tokenizer(words, 280)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    (tmp_path / "text.txt").write_bytes(words + digits)
    run = dataclasses.replace(
        untrained_run(16), model=Uniform(280), tokenizer=tokenizer, tokenizer_name=str(tmp_path / "tokenizer.json")
    )
    tokens = np.concatenate((tokenizer.encode(words), tokenizer.encode(digits)))
    for samples in (3, 200):
        (score,) = evaluate_run(run, "held-out", text=str(tmp_path / "text.txt"), samples=samples, device="cpu")
        windows = spread_sequences(tokens, 16, samples)[:, 1:]
        size = sum(len(tokenizer.decode(window).encode()) for window in windows.tolist())
        assert score.value == pytest.approx(math.log2(280) * windows.numel() / size, rel=1e-6)
        first, _ = evaluate_run(run, "copy", text=str(tmp_path / "text.txt"), samples=samples, device="cpu")
        windows = spread_sequences(tokens, 7, samples)[:, 1:]
        size = sum(len(tokenizer.decode(window).encode()) for window in windows.tolist())
        assert first.value == first.baseline == pytest.approx(math.log2(280) * windows.numel() / size, rel=1e-6)


def test_a_copier_predicts_the_second_copy_only():
    rng = np.random.default_rng(0)
    noise = HeldOutText(rng.integers(97, 123, 4000).astype(np.uint8), 1.0)
    bits, accuracy = PROBES["copy"](scorer(Copier()), noise, 20, 0)
    assert (bits.baseline, accuracy.baseline) == (pytest.approx(8.0, abs=1e-3), pytest.approx(0.0, abs=0.01))
    # The copies have 24 tokens each. The first of a copy is left out, and five more are needed to find the place.
    assert accuracy.value == pytest.approx(18 / 23, abs=0.02)
    assert bits.value == pytest.approx(8 * 5 / 23, abs=0.2)
    assert (bits.samples, bits.stderr < 0.1) == (20, True)


def test_cloze_counts_the_words_that_are_recognized():
    (score,) = PROBES["cloze"](scorer(Copier(99)), text(), 200, 0)  # all words have the same score
    assert (score.task, score.metric, score.baseline, score.samples) == ("cloze", "accuracy", 0.25, 200)
    assert score.value == pytest.approx(0.25, abs=0.1)
    assert score.stderr == pytest.approx(math.sqrt(score.value * (1 - score.value) / 199), rel=1e-3)
    only = HeldOutText(np.frombuffer(b"mango apple grape lemon " + b"mango " * 400, np.uint8), 1.0)
    assert PROBES["cloze"](scorer(Fixed("mango")), only, 100, 0)[0].value > 0.97


def test_the_samples_follow_the_seed():
    model = scorer(untrained_run().model)
    first, again, other = (PROBES["cloze"](model, text(), 50, seed)[0].value for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_bits_per_byte_of_a_uniform_network():
    model = scorer(Copier(99))
    (score,) = PROBES["held-out"](model, HeldOutText(text().tokens, 2.0), 10, 0)
    assert score.value == pytest.approx(4.0)  # 8 bits per token of two bytes
    assert score.samples == 10


def test_text_that_is_too_short_is_an_error():
    short = HeldOutText(np.frombuffer(b"one two", np.uint8), 1.0)
    with pytest.raises(UsageError, match="lacks 4 different words with as many letters"):
        PROBES["cloze"](scorer(Copier()), short, 5, 0)
    for name in ("held-out", "copy"):
        with pytest.raises(UsageError, match="longer than the held-out text of 7 tokens"):
            PROBES[name](scorer(Copier()), short, 5, 0)
    with pytest.raises(UsageError, match="context of at least 3 tokens"):
        PROBES["copy"](scorer(Copier(), 2), text(), 5, 0)
