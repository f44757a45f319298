"""Multi-query associative recall.

The task of "Zoology: Measuring and Improving Recall in Efficient Language Models" (Arora et al. 2023, arXiv
2312.04927), following its published code: a sequence starts with pairs of a key and its value, all distinct. Each key
then occurs once more as a query, at an even distance d from the pairs, drawn without replacement with probabilities
proportional to ``d^(power - 1)``. The target at a query is the key's value. All other tokens are random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.errors import UsageError, expect_ranges
from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, answer_accuracy


@dataclass(frozen=True)
class Recall:
    """Sequences of key-value pairs and queries.

    Args:
        pairs: Number of key-value pairs; published: 4 to 64.
        context: Context length in tokens; published: 64 to 512.
        vocab_size: Number of tokens: the first half without token 0 are keys, the second half values; published: 8,192.
        power: Spread of the queries: 1 is uniform, smaller values are closer to the pairs; published: 0.01.
        random_filler: Whether all other positions have random tokens instead of token 0.

    Raises:
        UsageError: If the pairs and queries do not fit into the context, or the keys into the vocabulary.
    """

    pairs: int = 8
    context: int = 64
    vocab_size: int = 8192
    power: float = 0.01
    random_filler: bool = True

    def __post_init__(self) -> None:
        if self.pairs < 1 or self.context % 2 or 4 * self.pairs > self.context:
            raise UsageError(
                f"{self.pairs} pairs and their queries need an even context of at least {4 * max(self.pairs, 1)} "
                f"positions, got {self.context}."
            )
        if self.vocab_size // 2 - 1 < self.pairs:
            raise UsageError(f"{self.pairs} different keys need a vocab_size of at least {2 * self.pairs + 2} tokens.")
        expect_ranges(self, "power", above=0, most=1)

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Random sequences."""
        device = generator.device
        half = self.vocab_size // 2
        keys = 1 + self._without_replacement(torch.zeros(half - 1, device=device), count, generator)
        values = half + self._without_replacement(torch.zeros(self.vocab_size - half, device=device), count, generator)
        distance = torch.arange(1, self.context // 2 - self.pairs + 1, device=device)
        positions = 2 * self._without_replacement((self.power - 1) * distance.log(), count, generator) + 2 * self.pairs
        inputs = torch.zeros(count, self.context, dtype=torch.long, device=device)
        inputs[:, : 2 * self.pairs] = torch.stack([keys, values], -1).flatten(1)
        inputs.scatter_(1, positions, keys)
        if self.random_filler:
            filler = torch.randint(self.vocab_size, inputs.shape, generator=generator, device=device)
            inputs = torch.where(inputs == 0, filler, inputs)
        return Batch(inputs, torch.full_like(inputs, IGNORE).scatter_(1, positions, values))

    def score(self, predicted: Tensor, batch: Batch) -> AnswerAccuracy:
        """Share of correct queries as ``character``; whether all are correct as ``string``."""
        return answer_accuracy(predicted, batch.targets)

    def _without_replacement(self, log_probability: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Distinct indices, one per pair, for each sequence: the top entries of log probabilities plus Gumbel noise."""
        uniform = torch.rand(count, len(log_probability), generator=generator, device=log_probability.device)
        noise = -(-uniform.clamp(1e-20, 1 - 6e-8).log()).log()
        return (log_probability + noise).topk(self.pairs, dim=1).indices


class RecallCurriculum:
    """Recall whose number of pairs grows during training, which shortens the plateau that training starts with.

    A sequence with fewer pairs than the task is shorter in proportion, and padded with tokens 0, so that all sequences
    have the context of the task. A curriculum counts the sequences that it draws, so each training needs a new one.

    Args:
        task: The task at the end.
        first: Number of pairs at the start.
        held: Sequences with the first number of pairs.
        growing: Sequences over which the number grows evenly to that of the task.

    Raises:
        UsageError: If ``first`` is not from 1 to the task's number of pairs, or a number of sequences is negative.

    Examples:
        >>> curriculum = RecallCurriculum(Recall(8, 40, 64), first=4, held=100, growing=100)
        >>> [curriculum.task_at(drawn).pairs for drawn in (0, 99, 100, 150, 200, 9999)]
        [4, 4, 4, 6, 8, 8]
        >>> curriculum.task_at(0).context
        20
    """

    def __init__(self, task: Recall, first: int, held: int, growing: int) -> None:
        if not 1 <= first <= task.pairs:
            raise UsageError(f"a curriculum starts with 1 to {task.pairs} pairs, those of the task, got {first}.")
        if min(held, growing) < 0:
            raise UsageError(f"held and growing are numbers of sequences, got {held} and {growing}.")
        self.task, self.first, self.held, self.growing = task, first, held, growing
        self.drawn = 0

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.task.vocab_size

    @property
    def context(self) -> int:
        """Context length in tokens."""
        return self.task.context

    def task_at(self, drawn: int) -> Recall:
        """The task after a number of sequences."""
        if drawn >= self.held + self.growing:
            return self.task
        pairs = self.first + (self.task.pairs - self.first) * max(0, drawn - self.held) // max(1, self.growing)
        return replace(self.task, pairs=pairs, context=self.task.context * pairs // self.task.pairs // 2 * 2)

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Random sequences of the present number of pairs."""
        inputs, targets = self.task_at(self.drawn).draw(count, generator)
        self.drawn += count
        padding = (0, self.context - inputs.shape[1])
        return Batch(F.pad(inputs, padding), F.pad(targets, padding, value=IGNORE))
