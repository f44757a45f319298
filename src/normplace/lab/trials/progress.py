"""What a person sees while trials run; nothing when no one is looking."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SHOWN = 8


class Progress:
    """A live view on a terminal: what runs, what is done, the time left.

    Args:
        stream: Where to draw; when it is no terminal only notes are written.
        unit: What is counted.
    """

    def __init__(self, stream: TextIO | None = None, unit: str = "trials") -> None:
        self.console = Console(file=stream or sys.stderr)
        self._running: dict[int, float] = {}
        self._done = self._failed = self._skipped = 0
        self._labels: Sequence[str] = ()
        self._title, self._unit = "", unit
        self._start = 0.0

    def note(self, text: str) -> None:
        """Tell the person something that stays on the screen."""
        self.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def watch(self, title: str, labels: Sequence[str], skipped: int) -> Iterator[None]:
        """Show the trials called ``labels`` while the block runs.

        Args:
            title: What they belong to.
            labels: A few words for each.
            skipped: How many were recorded earlier.
        """
        self._title, self._labels, self._skipped = title, labels, skipped
        self._done = self._failed = 0
        self._running.clear()
        self._start = time.monotonic()
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._view, console=self.console, refresh_per_second=4, transient=True):
            yield

    def started(self, index: int) -> None:
        """Trial ``index`` was handed to a worker."""
        self._running[index] = time.monotonic()

    def finished(self, index: int, ok: bool) -> None:
        """Trial ``index`` is recorded."""
        self._running.pop(index, None)
        self._done += 1
        self._failed += not ok

    def time_left(self) -> float | None:
        """Seconds until the end at the pace so far; None until a trial has finished."""
        if not self._done:
            return None
        return (time.monotonic() - self._start) / self._done * (len(self._labels) - self._done)

    def _view(self) -> Group:
        total = len(self._labels) + self._skipped
        done = self._done + self._skipped
        left = self.time_left()
        head = Text.assemble(
            (self._title, "bold"),
            f"  {done} of {total} {self._unit}",
            (f"  {self._failed} failed" if self._failed else "", "red"),
            f"  {clock(time.monotonic() - self._start)} so far",
            "" if left is None else f", about {clock(left)} left",
        )
        rows = Table.grid(padding=(0, 2))
        for index, since in list(self._running.items())[:SHOWN]:
            rows.add_row("  " + self._labels[index], clock(time.monotonic() - since))
        if len(self._running) > SHOWN:
            rows.add_row(f"  and {len(self._running) - SHOWN} more", "")
        bar = Table.grid()
        bar.add_row(ProgressBar(total=max(total, 1), completed=done, width=60))  # alone it would not end its line
        return Group(head, bar, rows)


def clock(seconds: float) -> str:
    """A duration for people.

    Example:
        >>> clock(75)
        '1:15'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
