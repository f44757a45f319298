"""Notes of claims: passages that several claims share are printed once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

SHORTEST = 100
"""Characters of the shortest passage that is moved; a shorter one is repeated."""

_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True)
class Note:
    """The note of one claim.

    Args:
        own: Text of this claim alone, and passages that are too short to be moved.
        shared: Numbers, from 1, of the shared passages that belong to it.
    """

    own: str
    shared: tuple[int, ...]


def fold(notes: Sequence[str]) -> tuple[dict[str, int], list[Note]]:
    """Move the passages that several notes share out of them.

    A passage is a run of sentences that occur in the same notes.

    Args:
        notes: One per claim; may be empty.

    Returns:
        The shared passages in order of appearance, each with the number of notes that share it; and the rest of each
        note.
    """
    sentences = [_BETWEEN_SENTENCES.split(note) if note else [] for note in notes]
    owners = {text: {n for n, other in enumerate(sentences) if text in other} for note in sentences for text in note}
    passages = [[" ".join(run) for _, run in groupby(note, key=owners.__getitem__)] for note in sentences]
    counts = Counter(passage for note in passages for passage in set(note))
    shared = {passage: n for passage, n in counts.items() if n > 1 and len(passage) >= SHORTEST}
    ordered = list(dict.fromkeys(passage for note in passages for passage in note if passage in shared))
    rest = [
        Note(
            own=" ".join(passage for passage in note if passage not in shared),
            shared=tuple(sorted({ordered.index(passage) + 1 for passage in note if passage in shared})),
        )
        for note in passages
    ]
    return {passage: shared[passage] for passage in ordered}, rest
