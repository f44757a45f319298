"""What a sequence task gives a model, and how its answers are judged."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

IGNORE = -1
"""The target of a position that is not asked about."""


class Batch(NamedTuple):
    """Tokens and, for each, the token that should come next, or :data:`IGNORE`; both (rows, positions)."""

    inputs: Tensor
    targets: Tensor


class SequenceTask(Protocol):
    """A source of batches.

    Rows are drawn on the generator's device, all at once and without waiting for it, so that a training loop on a GPU
    never waits for data.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        ...

    @property
    def context(self) -> int:
        """Positions in a row."""
        ...

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """New random rows."""
        ...


class AnswerAccuracy(NamedTuple):
    """One number per row: whether the whole answer is right, and the share of its characters that are."""

    string: Tensor
    character: Tensor


def answer_accuracy(
    predicted: Tensor, targets: Tensor, end: int | None = None, *, strict: bool = False
) -> AnswerAccuracy:
    """How right the predicted answers are, row by row.

    Args:
        predicted: Tokens, (rows, positions): the likeliest ones under teacher forcing, or those of greedy decoding.
        targets: As in :class:`Batch`.
        end: The token that ends an answer; it is not one of the answer's characters.
        strict: Whether a row that ends too early, or does not end where it should, counts as wrong in every character.

    Example:
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
