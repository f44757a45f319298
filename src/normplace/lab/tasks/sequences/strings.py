"""Copying and look-up in strings of varying length, as Jelassi et al. 2024 pose them.

"Repeat After Me: Transformers are Better than State Space Models at Copying" (arXiv 2402.01032), by its published code:
letters ``a`` to ``z`` and the marks ``$`` (start), ``|`` (asks), ``.`` (end) and ``*`` (padding), with these tasks:

=============== ==================== =====================================================
``copy``        ``$s|s.``            the string again
``prefix``      ``$g|s|t.``          what follows the n-gram g in s, asked for beforehand
``suffix``      ``$s|gt.``           the same, asked for afterwards
=============== ==================== =====================================================

Training rows pack several examples; only the answer and its ``.`` are asked for. A row of an exam is one example.

Ours: the n-gram is drawn from all places in the string where the answer fits, while the published code leaves out the
last two; and rows hold one token more before the cut, since here inputs and targets are both ``context`` long.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown
from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, answer_accuracy
from normplace.lab.tasks.sequences.packing import pack

TASKS = ("copy", "prefix", "suffix")
ALPHABET = string.ascii_lowercase + "$|.*"
START, ASK, END, PAD = range(26, 30)


def encode(text: str, device: torch.device | str = "cpu") -> Tensor:
    """The tokens of a text in :data:`ALPHABET`.

    Raises:
        UsageError: If a character is not in it.

    Example:
        >>> tokens("$cab|").tolist()
        [26, 2, 0, 1, 27]
    """
    for character in text:
        if character not in ALPHABET:
            raise UsageError(f"{character!r} is no character of this task: use a to z and the marks $ | . *.")
    return torch.tensor([ALPHABET.index(character) for character in text], device=device)


def decode(row: Iterable[int] | Tensor) -> str:
    """The text of some tokens."""
    return "".join(ALPHABET[int(token)] for token in row)


@dataclass(frozen=True)
class StringTask:
    """Packed rows of one of the tasks.

    Args:
        task: ``copy``, ``prefix`` or ``suffix``.
        shortest: The least length of a string; published: 5.
        longest: The greatest; published: 20.
        context: Positions in a training row; published: 220.
        alphabet: How many letters are used; published: 26.
        ngram: Characters of the n-gram, in look-up.
        answer: Characters of the answer, in look-up.

    Raises:
        UsageError: If the task is unknown or its sizes do not fit together.
    """

    task: str = "copy"
    shortest: int = 5
    longest: int = 20
    context: int = 220
    alphabet: int = 26
    ngram: int = 3
    answer: int = 1

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("string task", self.task, TASKS)
        if not 1 <= self.alphabet <= 26:
            raise UsageError(f"an alphabet has 1 to 26 letters, got {self.alphabet}.")
        least = 1 if self.task == "copy" else self.ngram + self.answer
        if min(self.ngram, self.answer) < 1 or not least <= self.shortest <= self.longest:
            raise UsageError(
                f"lengths must satisfy {least} <= shortest <= longest, so that every string holds what is asked for, "
                f"got {self.shortest} and {self.longest}."
            )
        if self._size(self.longest) > self.context:
            raise UsageError(
                f"an example of {self.longest} characters takes {self._size(self.longest)} positions, but a row has "
                f"{self.context}: raise context or lower longest."
            )

    @property
    def vocab_size(self) -> int:
        """Letters and marks, whatever the alphabet, so that models of different alphabets are alike."""
        return len(ALPHABET)

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """New random packed rows."""
        device = generator.device
        slots = self.context // self._size(self.shortest) + 1
        shape = (rows, slots)
        lengths = torch.randint(self.shortest, self.longest + 1, shape, generator=generator, device=device)
        examples, answers, sizes = self._examples(lengths, generator)
        return pack(examples, answers, sizes, self.context)

    def evaluation_batch(self, rows: int, length: int, generator: torch.Generator) -> Batch:
        """Rows of one example each, all of one length, which may be beyond any seen in training.

        Raises:
            UsageError: If strings of that length cannot hold what is asked for.
        """
        least = 1 if self.task == "copy" else self.ngram + self.answer
        if length < least:
            raise UsageError(f"strings of the task {self.task!r} have at least {least} characters, got {length}.")
        lengths = torch.full((rows, 1), length, device=generator.device)
        examples, answers, _ = self._examples(lengths, generator, longest=length)
        row, asked = examples[:, 0], answers[:, 0]
        return Batch(row[:, :-1], torch.where(asked, row, IGNORE)[:, 1:])

    def score(self, predicted: Tensor, batch: Batch) -> AnswerAccuracy:
        """Exact match of the answer, its ``.`` left out, and the share of right characters."""
        return answer_accuracy(predicted, batch.targets[:, -predicted.shape[1] :], END)

    def _size(self, length: int) -> int:
        """Positions that an example of one string takes."""
        if self.task == "copy":
            return 2 * length + 3
        return length + self.ngram + self.answer + (4 if self.task == "prefix" else 3)

    def _examples(
        self, lengths: Tensor, generator: torch.Generator, longest: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Examples of these lengths, which of their tokens are the answer, and their sizes."""
        longest = longest or self.longest
        device, shape = lengths.device, lengths.shape
        drawn = torch.randint(self.alphabet, (*shape, longest), generator=generator, device=device)
        if self.task == "copy":
            return _joined(((START, drawn, lengths), (ASK, drawn, lengths)))
        gram, answer = self._look_up(drawn, lengths, generator)
        n, m = (torch.full_like(lengths, size) for size in (self.ngram, self.answer))
        if self.task == "prefix":
            return _joined(((START, gram, n), (ASK, drawn, lengths), (ASK, answer, m)))
        asked_then_answer = torch.cat([gram, answer], -1)
        examples, answers, sizes = _joined(((START, drawn, lengths), (ASK, asked_then_answer, n + m)))
        place = torch.arange(examples.shape[-1], device=device)
        return examples, answers & (place >= (sizes - 1 - self.answer)[..., None]), sizes

    def _look_up(self, drawn: Tensor, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """An n-gram of each string and what follows its first occurrence."""
        room = lengths - self.ngram - self.answer + 1
        start = (torch.rand(lengths.shape, generator=generator, device=drawn.device) * room).long()
        grams = drawn.unfold(-1, self.ngram, 1)
        gram = grams.gather(-2, start[..., None, None].expand(*start.shape, 1, self.ngram))
        first = (grams == gram).all(-1).int().argmax(-1)
        after = first[..., None] + self.ngram + torch.arange(self.answer, device=drawn.device)
        return gram.squeeze(-2), drawn.gather(-1, after)


def _joined(parts: tuple[tuple[int, Tensor, Tensor], ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Pieces, each a mark, characters and how many of them count, one after the other, and ``.`` at the end.

    The last piece is the answer.
    """
    sizes = sum((1 + size for _, _, size in parts), torch.ones_like(parts[0][2]))
    longest = 1 + sum(1 + characters.shape[-1] for _, characters, _ in parts)
    shape = (*sizes.shape, longest)
    examples = torch.full(shape, PAD, device=sizes.device)
    place = torch.arange(longest, device=sizes.device).expand(shape)
    start = torch.zeros_like(sizes)
    for mark, characters, size in parts:
        within = place - start[..., None] - 1
        inside = (within >= 0) & (within < size[..., None])
        examples = torch.where(within == -1, mark, examples)
        examples = torch.where(inside, characters.gather(-1, within.clamp(0, characters.shape[-1] - 1)), examples)
        start = start + 1 + size
    examples = torch.where(place == start[..., None], END, examples)
    asked_from = (sizes - 1 - parts[-1][2])[..., None]
    return examples, (place >= asked_from) & (place < sizes[..., None]), sizes
