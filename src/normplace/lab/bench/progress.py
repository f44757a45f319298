"""Progress of a run: a live view on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a run."""

    def started(self, index: int) -> None:
        """Case ``index`` starts."""

    def finished(self, index: int, ok: bool) -> None:
        """Case ``index`` is finished."""


class Lines:
    """Prints a line to stderr when a case starts."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels

    def started(self, index: int) -> None:
        """Case ``index`` starts."""
        print(f"{index + 1} of {len(self.labels)}: {self.labels[index]}", file=sys.stderr, flush=True)

    def finished(self, index: int, ok: bool) -> None:
        """Case ``index`` is finished; results are printed at the end."""


@contextmanager
def watch(title: str, labels: Sequence[str]) -> Iterator[Progress]:
    """Show the progress of cases inside a ``with`` block.

    Yields:
        The receiver of progress.
    """
    if not sys.stderr.isatty():
        yield Lines(labels)
        return
    from normplace.lab.trials.progress import Progress as Live

    live = Live(unit="cases")
    with live.watch(title, labels, skipped=0):
        yield live
