"""Training sequences in an order that depends on the seed only, so that a resumed run needs only its step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError


class TokenWindows:
    """Consecutive windows of ``context`` tokens and their successor; order and offset change with every epoch.

    Args:
        tokens: The text.
        context: Context length in tokens.
        seed: Random seed for the data order.

    Raises:
        UsageError: If the text is too short.
    """

    def __init__(self, tokens: np.ndarray, context: int, seed: int) -> None:
        self.tokens, self.context, self.seed = tokens, context, seed
        self.per_epoch = (len(tokens) - context) // context
        if self.per_epoch < 1:
            raise UsageError(
                f"a context of {context} tokens needs {2 * context} tokens of text, but there are {len(tokens)}: lower "
                "context or give more text."
            )
        self._epoch, self._starts = -1, np.empty(0, dtype=np.int64)

    def sequences(self, first: int, count: int) -> Tensor:
        """Return sequences of the endless order, count × (context + 1); the last column is only a target.

        Args:
            first: Index of the first sequence in that order.
            count: Number of sequences.
        """
        starts = np.array([self._start(index) for index in range(first, first + count)])
        return _gather(self.tokens, starts, self.context)

    def _start(self, index: int) -> int:
        epoch, index_in_epoch = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self._starts = rng.integers(self.context) + self.context * rng.permutation(self.per_epoch)
            self._epoch = epoch
        return int(self._starts[index_in_epoch])


def held_out_sequences(tokens: np.ndarray, context: int, count: int) -> Tensor:
    """Return the first ``count`` windows of the held-out text, in the shape of :meth:`TokenWindows.sequences`.

    Raises:
        UsageError: If the text is shorter than one window.
    """
    count = min(count, (len(tokens) - 1) // context)
    if count < 1:
        raise UsageError(
            f"a context of {context} tokens is longer than the held-out text of {len(tokens)} tokens: lower context or "
            "give more text."
        )
    return _gather(tokens, context * np.arange(count), context)


def evaluated_sequences(sequences: Tensor, size: int) -> Tensor:
    """Return the sequences that are evaluated: the largest number that processes share evenly.

    Args:
        sequences: From :func:`held_out_sequences`.
        size: Number of processes.
    """
    return sequences[: len(sequences) // size * size]


def spread_sequences(tokens: np.ndarray, context: int, count: int) -> Tensor:
    """Return ``count`` windows at equal distances over the whole text, or all of them if there are fewer.

    Raises:
        UsageError: If the text is shorter than one window.
    """
    windows = (len(tokens) - 1) // context
    if windows < 1:
        raise UsageError(f"a context of {context} tokens is longer than the held-out text of {len(tokens)} tokens.")
    count = min(count, windows)
    return _gather(tokens, context * (np.arange(count) * windows // count), context)


def _gather(tokens: np.ndarray, starts: np.ndarray, context: int) -> Tensor:
    return torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))


def shard(first: int, count: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first index and the number of the sequences that a process computes.

    Args:
        first: First index over all processes.
        count: Number over all processes, a multiple of ``size``.
        rank: Rank of the process.
        size: Number of processes.

    Examples:
        >>> shard(100, 8, rank=1, size=2)
        (104, 4)
    """
    assert count % size == 0
    per_process = count // size
    return first + rank * per_process, per_process
