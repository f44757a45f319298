"""Notes of claims: what several claims have in common is told once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

SHORTEST = 100
"""Characters of the shortest passage told apart; a shorter one is read faster where it stands than looked up."""

_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True)
class Note:
    """The note of one claim.

    Args:
        own: What is said of this claim alone, or is too short to be told apart.
        shared: Which of the shared passages belong to it, as their numbers from 1.
    """

    own: str
    shared: tuple[int, ...]


def fold(notes: Sequence[str]) -> tuple[dict[str, int], list[Note]]:
    """Take the passages that several notes share out of them.

    A passage is a run of sentences that the same notes have, so that no part of it belongs to fewer claims.

    Args:
        notes: One per claim; empty where there is nothing to say.

    Returns:
        The shared passages, in the order in which the notes come to them, each with how many notes share it; and what
        that leaves of each note.
    """
    sentences = [_BETWEEN_SENTENCES.split(note) if note else [] for note in notes]
    owners = {text: {n for n, told in enumerate(sentences) if text in told} for told in sentences for text in told}
    passages = [[" ".join(run) for _, run in groupby(told, key=owners.__getitem__)] for told in sentences]
    counts = Counter(passage for told in passages for passage in set(told))
    shared = {passage: n for passage, n in counts.items() if n > 1 and len(passage) >= SHORTEST}
    ordered = list(dict.fromkeys(passage for told in passages for passage in told if passage in shared))
    left = [
        Note(
            own=" ".join(passage for passage in told if passage not in shared),
            shared=tuple(sorted({ordered.index(passage) + 1 for passage in told if passage in shared})),
        )
        for told in passages
    ]
    return {passage: shared[passage] for passage in ordered}, left
