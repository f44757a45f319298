"""Probes of a language model on held-out text, which need no network: bits per byte, cloze and copying.

- ``held-out``: bits per byte of the text, as at the end of training, on windows at equal distances over the text.
- ``cloze``: a word of the text has to be recognized among three other words of the text with as many letters, by its
  probability after the text before it. Chance is 25%.
- ``copy``: a window of the text is repeated. Bits per byte and next-token accuracy of the second copy are compared
  with those of the first: a network that copies predicts the second one better.

Definitions and names are ours.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.train.byte_counts import ByteCounts
from normplace.lab.train.data import spread_sequences
from normplace.lab.train.scoring import Scorer

CHOICES = 4
WORD = re.compile(r"(?<= )[^\W\d_]{3,}(?=\W)")
LARGEST_TEXT = 1 << 22
"""Tokens of the text that words are taken from."""


@dataclass(frozen=True)
class TaskScore:
    """One number of a task.

    Args:
        task: Name of the task.
        metric: What was measured.
        value: Mean over the samples.
        stderr: Standard error of the mean; None if unknown.
        baseline: The value to compare with: chance for ``cloze``, the first copy for ``copy``; None without one.
        samples: Number of samples; None if unknown.
    """

    task: str
    metric: str
    value: float
    stderr: float | None = None
    baseline: float | None = None
    samples: int | None = None


@dataclass(frozen=True, eq=False)
class HeldOutText:
    """Text that the model was not trained on.

    Args:
        tokens: Its tokens.
        bytes_per_token: Mean over the text.
        byte_lengths: Bytes of each token of the vocabulary; None if every token has the mean.
    """

    tokens: np.ndarray
    bytes_per_token: float
    byte_lengths: np.ndarray | None = None

    def mean_bytes(self, tokens: Tensor) -> float:
        """Mean number of bytes of some tokens of the text."""
        if self.byte_lengths is None:
            return self.bytes_per_token
        return ByteCounts.of(self.byte_lengths, self.tokens, len(self.tokens) * self.bytes_per_token).mean(tokens)


def probe_held_out(scorer: Scorer, text: HeldOutText, samples: int, seed: int) -> list[TaskScore]:
    """Bits per byte of the text."""
    windows = spread_sequences(text.tokens, scorer.context, samples)
    losses, _ = scorer.token_losses(windows)
    return [_score("held-out", "bits per byte", _bits(losses, text.mean_bytes(windows[:, 1:])))]


def probe_copy(scorer: Scorer, text: HeldOutText, samples: int, seed: int) -> list[TaskScore]:
    """Bits per byte and accuracy of a repeated window, compared with those of its first occurrence."""
    length = (scorer.context + 1) // 2
    if length < 2:
        raise UsageError(f"copying needs a context of at least 3 tokens, but the run has {scorer.context}.")
    windows = spread_sequences(text.tokens, length - 1, samples)  # of length tokens
    losses, hits = scorer.token_losses(torch.cat((windows, windows), 1))
    # Column i is of token i + 1. The first token of a copy is left out, since nothing announces it.
    first, second = slice(0, length - 1), slice(length, 2 * length - 1)
    mean_bytes = text.mean_bytes(windows[:, 1:])
    bits = [_bits(losses[:, part], mean_bytes) for part in (first, second)]
    accuracy = [hits[:, part].double().mean(1).tolist() for part in (first, second)]
    return [
        _score("copy", "bits per byte", bits[1], statistics.fmean(bits[0])),
        _score("copy", "accuracy", accuracy[1], statistics.fmean(accuracy[0])),
    ]


def probe_cloze(scorer: Scorer, text: HeldOutText, samples: int, seed: int) -> list[TaskScore]:
    """Accuracy of recognizing a word of the text among others of as many letters."""
    content = scorer.tokenizer.decode(text.tokens[:LARGEST_TEXT].tolist())
    words = [match for match in WORD.finditer(content) if match.start() > 1]
    by_length: dict[int, set[str]] = {}
    for match in words:
        by_length.setdefault(len(match[0]), set()).add(match[0])
    usable = [match for match in words if len(by_length[len(match[0])]) >= CHOICES]
    if not usable:
        raise UsageError(
            f"the text lacks {CHOICES} different words with as many letters, which cloze needs: give more text, or "
            "choose other tasks."
        )
    rng = random.Random(seed)
    pairs, answers = [], []
    for match in rng.sample(usable, min(samples, len(usable))):
        others = sorted(by_length[len(match[0])] - {match[0]})
        words = [match[0], *rng.sample(others, CHOICES - 1)]
        rng.shuffle(words)
        answers.append(words.index(match[0]))
        # The space belongs to the word, as it does in the tokens of most tokenizers.
        before = content[max(0, match.start() - 1 - 8 * scorer.context) : match.start() - 1]
        context = scorer.encode(before)
        pairs += [(context, scorer.encode(" " + word)) for word in words]
    values = [value for value, _ in scorer.score(pairs)]
    choices = [values[first : first + CHOICES] for first in range(0, len(values), CHOICES)]
    hits = [
        float(max(range(CHOICES), key=row.__getitem__) == answer) for row, answer in zip(choices, answers, strict=True)
    ]
    return [_score("cloze", "accuracy", hits, 1 / CHOICES)]


def _bits(losses: Tensor, mean_bytes: float) -> list[float]:
    """Bits of each sequence per byte of an average one; their mean is the bits per byte of all sequences."""
    return (losses.double().mean(1) / math.log(2) / mean_bytes).tolist()


def _score(task: str, metric: str, values: Sequence[float], baseline: float | None = None) -> TaskScore:
    stderr = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return TaskScore(task, metric, statistics.fmean(values), stderr, baseline, len(values))


PROBES: dict[str, Callable[[Scorer, HeldOutText, int, int], list[TaskScore]]] = {
    "held-out": probe_held_out,
    "cloze": probe_cloze,
    "copy": probe_copy,
}
"""The tasks that need no network, by name."""
