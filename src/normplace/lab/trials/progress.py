"""Progress of trials: live on a terminal, now and then a line in a log."""

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

SECONDS_BETWEEN_LINES = 30.0
"""Seconds between two lines of a log that is not a terminal."""
MOST_SHOWN = 8
"""Running trials that are listed."""


class Progress:
    """Live view of running and finished trials and the time left.

    Args:
        stream: Output; if it is not a terminal, notes and one line every half minute are written.
        unit: What is counted.
    """

    def __init__(self, stream: TextIO | None = None, unit: str = "trials") -> None:
        self.console = Console(file=stream or sys.stderr)
        self._running: dict[int, float] = {}
        self._done = self._failed = self._skipped = 0
        self._labels: Sequence[str] = ()
        self._title, self._unit = "", unit
        self._start = self._last_line = 0.0

    def note(self, text: str) -> None:
        """Print a note that stays on the screen."""
        self.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def watch(self, title: str, labels: Sequence[str], skipped: int) -> Iterator[None]:
        """Show the trials while the block runs."""
        self._title, self._labels, self._skipped = title, labels, skipped
        self._done = self._failed = 0
        self._running.clear()
        self._start = self._last_line = time.monotonic()
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._view, console=self.console, refresh_per_second=4, transient=True):
            yield

    def started(self, index: int) -> None:
        """Mark trial ``index`` as running."""
        self._running[index] = time.monotonic()

    def finished(self, index: int, ok: bool) -> None:
        """Mark trial ``index`` as recorded."""
        self._running.pop(index, None)
        self._done += 1
        self._failed += not ok
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self.console.print(self._head(), soft_wrap=True)

    def time_left(self) -> float | None:
        """Estimated seconds left; None until a trial has finished."""
        if not self._done:
            return None
        return (time.monotonic() - self._start) / self._done * (len(self._labels) - self._done)

    def _head(self) -> Text:
        """Counts and times in one line."""
        left = self.time_left()
        return Text.assemble(
            (self._title, "bold"),
            f"  {self._done + self._skipped} of {len(self._labels) + self._skipped} {self._unit}",
            (f"  {self._failed} failed" if self._failed else "", "red"),
            f"  {clock(time.monotonic() - self._start)} so far",
            "" if left is None else f", about {clock(left)} left",
        )

    def _view(self) -> Group:
        total = len(self._labels) + self._skipped
        done = self._done + self._skipped
        rows = Table.grid(padding=(0, 2))
        for index, since in list(self._running.items())[:MOST_SHOWN]:
            rows.add_row("  " + self._labels[index], clock(time.monotonic() - since))
        if len(self._running) > MOST_SHOWN:
            rows.add_row(f"  and {len(self._running) - MOST_SHOWN} more", "")
        bar = Table.grid()
        bar.add_row(ProgressBar(total=max(total, 1), completed=done, width=60))  # a table ends its line
        return Group(self._head(), bar, rows)


def clock(seconds: float) -> str:
    """Format a duration.

    Examples:
        >>> clock(75)
        '1:15'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
