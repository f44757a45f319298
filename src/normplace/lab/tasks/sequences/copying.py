"""Copying strings of one length, as Cui et al. 2024 pose it.

"An All-MLP Sequence Modeling Architecture That Excels at Copying" (arXiv 2406.16168), by its published code: 26 letters
and three marks, one string per row, the same length in every row. With learned absolute positions a look-up at a fixed
distance solves it; :class:`~normplace.lab.tasks.sequences.strings.StringTask` poses the version of varying length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, answer_accuracy


@dataclass(frozen=True)
class FixedCopy:
    """Rows ``BOS s SEP s``, to be continued by ``s`` and then ``EOS``.

    Args:
        length: Characters of every string.
        letters: How many different ones there are; published: 26.

    Raises:
        UsageError: If there is no character to copy or no letter to draw.

    Example:
        >>> FixedCopy(2, letters=1).draw(1, torch.Generator())
        Batch(inputs=tensor([[0, 3, 3, 1, 3, 3]]), targets=tensor([[-1, -1, -1,  3,  3,  2]]))
    """

    length: int
    letters: int = 26

    BOS: ClassVar[int] = 0
    SEP: ClassVar[int] = 1
    EOS: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if min(self.length, self.letters) < 1:
            raise UsageError(
                f"a string to copy has at least one character of at least one letter, got length {self.length} and "
                f"{self.letters} letters."
            )

    @property
    def vocab_size(self) -> int:
        """Letters and marks."""
        return self.letters + 3

    @property
    def context(self) -> int:
        """Positions in a row."""
        return 2 * (self.length + 1)

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """New random rows."""
        size, device = (rows, self.length), generator.device
        strings = torch.randint(3, self.vocab_size, size, generator=generator, device=device)
        bos, sep, eos = (torch.full((rows, 1), mark, device=device) for mark in (self.BOS, self.SEP, self.EOS))
        unasked = torch.full((rows, self.length + 1), IGNORE, device=device)
        return Batch(torch.cat([bos, strings, sep, strings], 1), torch.cat([unasked, strings, eos], 1))

    def prompts(self, batch: Batch) -> Tensor:
        """The part of each row up to ``SEP``, for decoding."""
        return batch.inputs[:, : self.length + 2]

    def score(self, predicted: Tensor, batch: Batch) -> AnswerAccuracy:
        """Accuracy by the published rule: a row whose ``EOS`` is misplaced has no character right.

        Args:
            predicted: A token for every position of the row, the likeliest under teacher forcing ("soft"), or for the
                last ``length + 1`` positions, as decoded greedily from the prompt ("hard").
            batch: What was asked.
        """
        return answer_accuracy(predicted, batch.targets[:, -predicted.shape[1] :], self.EOS, strict=True)
