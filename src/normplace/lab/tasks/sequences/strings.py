"""Copying and look-up in strings of varying length (Jelassi et al. 2024).

The tasks of "Repeat After Me: Transformers are Better than State Space Models at Copying" (arXiv 2402.01032), as in
its published code. Tokens are the letters ``a`` to ``z`` and ``$`` (start), ``|`` (query), ``.`` (end), ``*``
(padding):

=============== ==================== =====================================================
``copy``        ``$s|s.``            the string
``prefix``      ``$g|s|t.``          what follows the n-gram g in s; g comes first
``suffix``      ``$s|gt.``           the same; g comes last
=============== ==================== =====================================================

Training sequences pack several examples; only the answer and its ``.`` have a loss. Evaluation sequences have one
example each.

In look-up, g occurs exactly once in s, so that the answer is unique. A string without such an n-gram has no loss in
training and is drawn again in evaluation, up to :data:`TRIES` times. The published code draws strings until one
n-gram is unique, but then asks for any n-gram, and the answer follows its first occurrence; ``unique=False`` does so
without drawing again.

Two further differences from the published code: the n-gram is drawn from all positions where the answer fits, not from
all but the last two; and sequences have one token more before truncation, so that inputs and targets both have
``context`` tokens.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, answer_accuracy
from normplace.lab.tasks.sequences.packing import pack

TASKS = ("copy", "prefix", "suffix")
ALPHABET = string.ascii_lowercase + "$|.*"
START, QUERY, END, PAD = range(26, 30)
TRIES = 10
"""Times that an evaluation string without a unique n-gram is drawn, as published."""
LONGEST_NGRAM = 13
"""n-grams are compared as integers of 64 bits, which hold this many of 26 letters."""


def encode(text: str, device: torch.device | str = "cpu") -> Tensor:
    """The tokens of a text over :data:`ALPHABET`.

    Raises:
        UsageError: If a character is not in the alphabet.

    Examples:
        >>> encode("$cab|").tolist()
        [26, 2, 0, 1, 27]
    """
    for character in text:
        if character not in ALPHABET:
            raise UsageError(f"{character!r} is not a character of this task: use a to z and $ | . *.")
    return torch.tensor([ALPHABET.index(character) for character in text], device=device)


def decode(row: Iterable[int] | Tensor) -> str:
    """The text of the tokens."""
    return "".join(ALPHABET[int(token)] for token in row)


@dataclass(frozen=True)
class StringTask:
    """Packed sequences of one of the tasks.

    Args:
        task: ``copy``, ``prefix`` or ``suffix``.
        shortest: Shortest string; published: 5.
        longest: Longest string; published: 20.
        context: Context length of training sequences in tokens; published: 220.
        alphabet: Number of letters; published: 26.
        ngram: Length of the n-gram, in look-up.
        answer: Length of the answer, in look-up; 0 for the rest of the string.
        unique: Whether the n-gram occurs exactly once in the string, in look-up.

    Raises:
        UsageError: If the task is unknown or the sizes are inconsistent.
    """

    task: str = "copy"
    shortest: int = 5
    longest: int = 20
    context: int = 220
    alphabet: int = 26
    ngram: int = 3
    answer: int = 1
    unique: bool = True

    def __post_init__(self) -> None:
        expect_choice("string task", self.task, TASKS)
        expect_ranges(self, "alphabet", least=1, most=26)
        if not 1 <= self.ngram <= LONGEST_NGRAM or self.answer < 0:
            raise UsageError(
                f"an n-gram has 1 to {LONGEST_NGRAM} characters and an answer 0 or more, got {self.ngram} and "
                f"{self.answer}."
            )
        if not self._least <= self.shortest <= self.longest:
            raise UsageError(
                f"lengths must satisfy {self._least} <= shortest <= longest, so that every string contains the answer, "
                f"got {self.shortest} and {self.longest}."
            )
        if self._size(self.longest) > self.context:
            raise UsageError(
                f"an example of {self.longest} characters takes {self._size(self.longest)} tokens, but the context is "
                f"{self.context}: increase context or reduce longest."
            )

    @property
    def vocab_size(self) -> int:
        """All letters and special tokens, whatever ``alphabet`` is, so that models have the same size."""
        return len(ALPHABET)

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Random packed sequences."""
        device = generator.device
        slots = self.context // self._size(self.shortest, answer=max(self.answer, 1)) + 1
        shape = (count, slots)
        lengths = torch.randint(self.shortest, self.longest + 1, shape, generator=generator, device=device)
        examples, answers, sizes = self._examples(lengths, generator)
        return pack(examples, answers, sizes, self.context)

    def evaluation_batch(self, count: int, length: int, generator: torch.Generator) -> Batch:
        """Sequences of one example each, of one string length, which may exceed the training lengths.

        Raises:
            UsageError: If strings of that length are too short for the answer, or no n-gram of a string is unique.
        """
        if length < self._least:
            raise UsageError(f"strings of the task {self.task!r} need at least {self._least} characters, got {length}.")
        lengths = torch.full((count, 1), length, device=generator.device)
        examples, answers, _ = self._examples(lengths, generator, longest=length)
        for _ in range(TRIES):
            missing = ~answers.any(-1)[:, 0]
            if not missing.any():
                break
            examples[missing], answers[missing], _ = self._examples(lengths[missing], generator, longest=length)
        else:
            raise UsageError(
                f"no {self.ngram}-gram occurs exactly once in some strings of {length} characters: increase ngram or "
                "alphabet."
            )
        sequence, is_answer = examples[:, 0], answers[:, 0]
        return Batch(sequence[:, :-1], torch.where(is_answer, sequence, IGNORE)[:, 1:])

    def score(self, predicted: Tensor, batch: Batch) -> AnswerAccuracy:
        """Exact match of the answer without its ``.``, and the share of correct characters."""
        return answer_accuracy(predicted, batch.targets[:, -predicted.shape[1] :], END)

    @property
    def _least(self) -> int:
        """Shortest possible string."""
        return 1 if self.task == "copy" else self.ngram + max(self.answer, 1)

    def _size(self, length: int, answer: int | None = None) -> int:
        """Number of tokens of an example, by default with the longest answer."""
        if self.task == "copy":
            return 2 * length + 3
        answer = (self.answer or length - self.ngram) if answer is None else answer
        return length + self.ngram + answer + (4 if self.task == "prefix" else 3)

    def _examples(
        self, lengths: Tensor, generator: torch.Generator, longest: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Examples with strings of these lengths, the mask of their answers, and their sizes."""
        longest = longest or self.longest
        device, shape = lengths.device, lengths.shape
        drawn = torch.randint(self.alphabet, (*shape, longest), generator=generator, device=device)
        if self.task == "copy":
            return _joined(((START, drawn, lengths), (QUERY, drawn, lengths)))
        gram, answer, m, is_asked = self._look_up(drawn, lengths, generator)
        n = torch.full_like(lengths, self.ngram)
        if self.task == "prefix":
            examples, answers, sizes = _joined(((START, gram, n), (QUERY, drawn, lengths), (QUERY, answer, m)))
            return examples, answers & is_asked[..., None], sizes
        query_and_answer = torch.cat([gram, answer], -1)
        examples, answers, sizes = _joined(((START, drawn, lengths), (QUERY, query_and_answer, n + m)))
        position = torch.arange(examples.shape[-1], device=device)
        answers = answers & is_asked[..., None] & (position >= (sizes - 1 - m)[..., None])
        return examples, answers, sizes

    def _look_up(
        self, drawn: Tensor, lengths: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """An n-gram of each string, the characters after it, how many are the answer, and whether to ask for it."""
        room = lengths - self.ngram - max(self.answer, 1) + 1
        grams = drawn.unfold(-1, self.ngram, 1)
        if self.unique:
            start, is_asked = self._unique_start(grams, lengths, room, generator)
        else:
            start = (torch.rand(lengths.shape, generator=generator, device=drawn.device) * room).long()
            is_asked = torch.ones_like(start, dtype=torch.bool)
        gram = grams.gather(-2, start[..., None, None].expand(*start.shape, 1, self.ngram))
        first = (grams == gram).all(-1).int().argmax(-1)
        most = self.answer or drawn.shape[-1] - self.ngram
        after = first[..., None] + self.ngram + torch.arange(most, device=drawn.device)
        size = torch.full_like(lengths, self.answer) if self.answer else lengths - first - self.ngram
        return gram.squeeze(-2), drawn.gather(-1, after.clamp(max=drawn.shape[-1] - 1)), size, is_asked

    def _unique_start(
        self, grams: Tensor, lengths: Tensor, room: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A random start of an n-gram that occurs once in its string, and whether there is one."""
        position = torch.arange(grams.shape[-2], device=grams.device)
        codes = (grams * self.alphabet ** torch.arange(self.ngram, device=grams.device)).sum(-1)
        codes = torch.where(position <= (lengths - self.ngram)[..., None], codes, -1)  # beyond the end of the string
        occurrences = (codes[..., :, None] == codes[..., None, :]).sum(-1)
        candidates = (occurrences == 1) & (position < room[..., None])
        noise = torch.rand(codes.shape, generator=generator, device=grams.device)
        return torch.where(candidates, noise, -1.0).argmax(-1), candidates.any(-1)


def _joined(parts: tuple[tuple[int, Tensor, Tensor], ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate parts and append ``.``; the last part is the answer.

    Each part is a special token, characters, and how many of the characters to use.
    """
    sizes = sum((1 + size for _, _, size in parts), torch.ones_like(parts[0][2]))
    longest = 1 + sum(1 + characters.shape[-1] for _, characters, _ in parts)
    shape = (*sizes.shape, longest)
    examples = torch.full(shape, PAD, device=sizes.device)
    position = torch.arange(longest, device=sizes.device).expand(shape)
    start = torch.zeros_like(sizes)
    for token, characters, size in parts:
        within = position - start[..., None] - 1
        inside = (within >= 0) & (within < size[..., None])
        examples = torch.where(within == -1, token, examples)
        examples = torch.where(inside, characters.gather(-1, within.clamp(0, characters.shape[-1] - 1)), examples)
        start = start + 1 + size
    examples = torch.where(position == start[..., None], END, examples)
    answer_start = (sizes - 1 - parts[-1][2])[..., None]
    return examples, (position >= answer_start) & (position < sizes[..., None]), sizes
