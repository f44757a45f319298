"""Multi-query associative recall.

As Arora et al. 2023 define it ("Zoology: Measuring and Improving Recall in Efficient Language Models", arXiv
2312.04927), by their published code: a row starts with pairs of a key and its value, all different; then every key
stands once more, at even distances from the pairs, drawn without replacement with chances that fall with the distance d
as ``d^(power - 1)``; the position of such a query is to answer with the key's value. All other tokens are random.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, answer_accuracy


@dataclass(frozen=True)
class Recall:
    """Rows of pairs and queries.

    Args:
        pairs: Keys, each with its value; published: 4 to 64.
        context: Positions in a row; published: 64 to 512.
        vocab: Tokens: the first half are keys, but for token 0, the second are values; published: 8,192.
        power: How queries are spread: 1 is uniform, and towards 0 they stand closer to the pairs; published: 0.01.
        random_filler: Whether the other positions hold random tokens of the whole vocabulary instead of token 0.

    Raises:
        UsageError: If the pairs and their queries do not fit into the row, or the keys into the vocabulary.
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
            raise UsageError(f"{self.pairs} different keys need a vocab of at least {2 * self.pairs + 2} tokens.")
        if not 0 < self.power <= 1:
            raise UsageError(f"power must lie above 0 and at most at 1, got {self.power}.")

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """New random rows."""
        device = generator.device
        half = self.vocab_size // 2
        keys = 1 + self._without_replacement(torch.zeros(half - 1, device=device), rows, generator)
        values = half + self._without_replacement(torch.zeros(self.vocab_size - half, device=device), rows, generator)
        distance = torch.arange(1, self.context // 2 - self.pairs + 1, device=device)
        places = 2 * self._without_replacement((self.power - 1) * distance.log(), rows, generator) + 2 * self.pairs
        inputs = torch.zeros(rows, self.context, dtype=torch.long, device=device)
        inputs[:, : 2 * self.pairs] = torch.stack([keys, values], -1).flatten(1)
        inputs.scatter_(1, places, keys)
        if self.random_filler:
            filler = torch.randint(self.vocab_size, inputs.shape, generator=generator, device=device)
            inputs = torch.where(inputs == 0, filler, inputs)
        return Batch(inputs, torch.full_like(inputs, IGNORE).scatter_(1, places, values))

    def score(self, predicted: Tensor, batch: Batch) -> AnswerAccuracy:
        """Share of queries answered rightly, as ``character``, and of rows with all of them right, as ``string``."""
        return answer_accuracy(predicted, batch.targets)

    def _without_replacement(self, log_chance: Tensor, rows: int, generator: torch.Generator) -> Tensor:
        """As many different indices as there are pairs in each row: the top of the chances with Gumbel noise."""
        uniform = torch.rand(rows, len(log_chance), generator=generator, device=log_chance.device)
        noise = -(-uniform.clamp(1e-20, 1 - 6e-8).log()).log()
        return (log_chance + noise).topk(self.pairs, dim=1).indices
