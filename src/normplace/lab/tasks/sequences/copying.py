"""Copying strings of one length (Cui et al. 2024).

The task of "An All-MLP Sequence Modeling Architecture That Excels at Copying" (arXiv 2406.16168), following its
published code: 26 letters and three special tokens, one string per sequence, all of the same length. With learned
absolute positions a look-up at a fixed distance solves it; :class:`~normplace.lab.tasks.sequences.strings.StringTask`
varies the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from normplace.errors import expect_whole
from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, answer_accuracy


@dataclass(frozen=True)
class FixedCopy:
    """Sequences ``BOS s SEP s EOS``; the loss is on the second ``s`` and ``EOS``.

    Args:
        length: Number of characters of each string.
        letters: Size of the alphabet; published: 26.

    Raises:
        UsageError: If ``length`` or ``letters`` is not positive.

    Examples:
        >>> FixedCopy(2, letters=1).draw(1, torch.Generator())
        Batch(inputs=tensor([[0, 3, 3, 1, 3, 3]]), targets=tensor([[-1, -1, -1,  3,  3,  2]]))
    """

    length: int
    letters: int = 26

    BOS: ClassVar[int] = 0
    SEP: ClassVar[int] = 1
    EOS: ClassVar[int] = 2

    def __post_init__(self) -> None:
        expect_whole(1, length=self.length, letters=self.letters)

    @property
    def vocab_size(self) -> int:
        """Letters and special tokens."""
        return self.letters + 3

    @property
    def context(self) -> int:
        """Context length in tokens."""
        return 2 * (self.length + 1)

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Random sequences."""
        size, device = (count, self.length), generator.device
        strings = torch.randint(3, self.vocab_size, size, generator=generator, device=device)
        bos, sep, eos = (torch.full((count, 1), token, device=device) for token in (self.BOS, self.SEP, self.EOS))
        ignored = torch.full((count, self.length + 1), IGNORE, device=device)
        return Batch(torch.cat([bos, strings, sep, strings], 1), torch.cat([ignored, strings, eos], 1))

    def prompts(self, batch: Batch) -> Tensor:
        """Each sequence up to ``SEP``, for decoding."""
        return batch.inputs[:, : self.length + 2]

    def score(self, predicted: Tensor, batch: Batch) -> AnswerAccuracy:
        """Accuracy by the published rule: if ``EOS`` is misplaced, all characters count as wrong.

        Args:
            predicted: The most likely token at every position under teacher forcing ("soft"), or greedily decoded
                tokens of the last ``length + 1`` positions ("hard").
            batch: The sequences.
        """
        return answer_accuracy(predicted, batch.targets[:, -predicted.shape[1] :], self.EOS, strict=True)
