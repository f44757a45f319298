"""Rows of text in an order that is a function of the seed alone, so that a run that goes on needs only its step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError


class TokenWindows:
    """Rows of ``context`` tokens and their successors, side by side, in a new order and from a new start every epoch.

    Args:
        tokens: The text.
        context: Positions of a row.
        seed: Of the orders.

    Raises:
        UsageError: If the text is too short.
    """

    def __init__(self, tokens: np.ndarray, context: int, seed: int) -> None:
        self.tokens, self.context, self.seed = tokens, context, seed
        self.in_epoch = (len(tokens) - context) // context
        if self.in_epoch < 1:
            raise UsageError(
                f"rows of {context} positions need {2 * context} tokens of text, but there are {len(tokens)}: lower "
                "context or give more text."
            )
        self._epoch, self._starts = -1, np.empty(0, dtype=np.int64)

    def rows(self, first: int, count: int) -> Tensor:
        """Rows of the endless order, count × (context + 1), the last column only ever a target.

        Args:
            first: Where in the order to begin.
            count: How many.
        """
        starts = np.array([self._start(at) for at in range(first, first + count)])
        return _gathered(self.tokens, starts, self.context)

    def _start(self, at: int) -> int:
        epoch, place = divmod(at, self.in_epoch)
        if epoch != self._epoch:
            chance = np.random.default_rng((self.seed, epoch))
            self._starts = chance.integers(self.context) + self.context * chance.permutation(self.in_epoch)
            self._epoch = epoch
        return int(self._starts[place])


def held_out_sequences(tokens: np.ndarray, context: int, rows: int) -> Tensor:
    """The first rows of the held-out text, side by side, as :class:`TokenWindows` gives them.

    Raises:
        UsageError: If there is not one row.
    """
    rows = min(rows, (len(tokens) - 1) // context)
    if rows < 1:
        raise UsageError(
            f"rows of {context} positions are longer than the held-out text of {len(tokens)} tokens: lower context or "
            "give more text."
        )
    return _gathered(tokens, context * np.arange(rows), context)


def _gathered(tokens: np.ndarray, starts: np.ndarray, context: int) -> Tensor:
    return torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))


def share(first: int, rows: int, rank: int, size: int) -> tuple[int, int]:
    """Which rows of ``rows`` from ``first`` on a process computes: its first, and how many.

    Example:
        >>> share(100, 8, rank=1, size=2)
        (104, 4)
    """
    assert rows % size == 0
    mine = rows // size
    return first + rank * mine, mine
