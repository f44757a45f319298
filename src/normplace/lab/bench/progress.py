"""How far a run is: a live view on a terminal, lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What is told how far a run is."""

    def started(self, index: int) -> None:
        """Case ``index`` is being measured."""

    def finished(self, index: int, ok: bool) -> None:
        """Case ``index`` is done."""


class Lines:
    """A line on the error stream as each case starts.

    Args:
        labels: What the cases are called.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels

    def started(self, index: int) -> None:
        """Case ``index`` is being measured."""
        print(f"{index + 1} of {len(self.labels)}: {self.labels[index]}", file=sys.stderr, flush=True)

    def finished(self, index: int, ok: bool) -> None:
        """Case ``index`` is done; what became of it is told at the end."""


@contextmanager
def watch(title: str, labels: Sequence[str]) -> Iterator[Progress]:
    """Show cases while the block runs.

    Args:
        title: What they belong to.
        labels: What they are called.

    Yields:
        What to tell.
    """
    if importlib.util.find_spec("rich") is None or not sys.stderr.isatty():
        yield Lines(labels)
        return
    from normplace.lab.trials.progress import Progress as Live

    live = Live(unit="cases")
    with live.watch(title, labels, skipped=0):
        yield live
