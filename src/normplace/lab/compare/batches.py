"""The training batches of one seed, in an order that no edit can change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from normplace.errors import UsageError
from normplace.lab.compare.rng import RandomState, preserved_random_state, seed_all
from normplace.lab.compare.task import Batches

DATA_STREAM = 1_000_003
"""Added to the seed for the generators that the data reads, which differ from those of the model."""


class BatchStream:
    """An endless stream of batches; the data is repeated when it ends.

    The data reads random generators of its own, so the order of batches does not depend on the random numbers that a
    model draws. Two edits see the same batches in the same order.

    Args:
        batches: The training data, see :class:`~normplace.lab.compare.task.Start`.
        seed: Seed of its order.
    """

    def __init__(self, batches: Batches, seed: int) -> None:
        self._batches = batches
        self._is_fixed = isinstance(batches, list | tuple)  # reads no random generator
        self._iterator: Iterator[Any] | None = None
        self._epoch = self._drawn = self._drawn_before = 0
        self._peeked: list[Any] = []
        with preserved_random_state():
            seed_all(seed + DATA_STREAM)
            self._state = RandomState.capture()

    @property
    def can_run_out(self) -> bool:
        """Whether the data is an iterator, which cannot be repeated."""
        return isinstance(self._batches, Iterator)

    def peek(self) -> Any:
        """The next batch, which stays the next one."""
        if not self._peeked:
            self._peeked.append(self._draw())
        return self._peeked[0]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._peeked.pop() if self._peeked else self._draw()

    def _draw(self) -> Any:
        if self._is_fixed:
            return self._advance()
        outside = RandomState.capture()
        self._state.restore()
        try:
            return self._advance()
        finally:
            self._state = RandomState.capture()
            outside.restore()

    def _advance(self) -> Any:
        """The next batch of the epoch, or the first of the next epoch.

        Raises:
            UsageError: If the data has no batch, or is an iterator that ran out.
        """
        if self._iterator is None:
            self._iterator = iter(self._epoch_batches())
        for batch in self._iterator:
            self._drawn += 1
            return batch
        if self._drawn == self._drawn_before:
            raise UsageError("the training data has no batch: return at least one.")
        if self.can_run_out:
            raise UsageError(
                f"the training batches ran out after {self._drawn}: return a list, a DataLoader or a function of the "
                "epoch, which can be repeated, instead of an iterator."
            )
        self._iterator, self._epoch, self._drawn_before = None, self._epoch + 1, self._drawn
        return self._advance()

    def _epoch_batches(self) -> Iterable[Any]:
        return self._batches(self._epoch) if callable(self._batches) else self._batches
