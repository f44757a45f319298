"""Processes that render charts, kept for the reports of later tests: to start one takes longer than to draw ten charts.

No chart depends on earlier charts; ``tests/lab/report/test_chart_renderer.py`` tests that.
"""

from __future__ import annotations

import subprocess
from typing import Any


class KeptProcess(subprocess.Popen):
    """A process that is not ended when a report is finished."""

    idle: list[KeptProcess]

    def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """Keep the process, unless it has exited."""
        if self.poll() is not None:
            return super().communicate(*arguments, **options)
        self.idle.append(self)
        return None, None

    def end(self) -> None:
        """Close its input, at which it exits."""
        super().communicate()


class ChartProcesses:
    """Takes the place of the module ``subprocess`` where charts are rendered."""

    PIPE = subprocess.PIPE

    def __init__(self) -> None:
        self._idle: list[KeptProcess] = []

    def Popen(self, command: list[str], **options: Any) -> KeptProcess:
        """Return a process that is idle, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.poll() is None:
                return process
            process.end()
        process = KeptProcess(command, **options)
        process.idle = self._idle
        return process

    def end(self) -> None:
        """End all processes."""
        for process in self._idle:
            process.end()
