"""The interface of sequence tasks, and the accuracy of answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

IGNORE = -1
"""Target of a position without a loss."""


class Batch(NamedTuple):
    """Tokens and the next token of each, or :data:`IGNORE`; both (sequences, positions)."""

    inputs: Tensor
    targets: Tensor


class SequenceTask(Protocol):
    """A source of random batches.

    Batches are drawn on the generator's device without synchronization, so that training on a GPU never waits for data.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        ...

    @property
    def context(self) -> int:
        """Context length in tokens."""
        ...

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Random sequences."""
        ...


class AnswerAccuracy(NamedTuple):
    """Per sequence: 1 if the whole answer is correct and 0 otherwise, and the share of correct characters."""

    string: Tensor
    character: Tensor


def answer_accuracy(
    predicted: Tensor, targets: Tensor, end: int | None = None, *, strict: bool = False
) -> AnswerAccuracy:
    """Accuracy of the predicted answers, per sequence.

    Args:
        predicted: Tokens (sequences, positions): the most likely ones under teacher forcing, or greedily decoded ones.
        targets: As in :class:`Batch`.
        end: The token that ends an answer; it does not count as a character.
        strict: If True, all characters of a sequence count as wrong when its end token is misplaced.

    Examples:
        >>> targets = torch.tensor([[-1, 5, 6, 2], [-1, 5, 6, 2]])
        >>> answer_accuracy(torch.tensor([[0, 5, 7, 2], [0, 5, 6, 6]]), targets, end=2, strict=True).character.tolist()
        [0.5, 0.0]
    """
    asked = targets != IGNORE
    is_end = torch.zeros_like(asked) if end is None else targets == end
    characters = asked & ~is_end
    wrong = characters & (predicted != targets)
    count = characters.sum(-1)
    character = (count - wrong.sum(-1)) / count
    string = ~wrong.any(-1)
    if strict and end is not None:
        ends_well = ~(asked & ((predicted == end) != is_end)).any(-1)
        string &= ends_well
        character = torch.where(ends_well, character, torch.zeros_like(character))
    return AnswerAccuracy(string.to(character.dtype), character)
