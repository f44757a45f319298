"""Render charts in several processes, and cache them in the user's cache folder for the next report."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from normplace._shared.output import write_atomic
from normplace._shared.resources import usable_cores
from normplace.errors import UsageError
from normplace.lab.report import chart_svg
from normplace.lab.tasks.data_files import cache_folder

CACHED_CHARTS = 2000
"""Charts in the cache folder; the oldest are removed first."""

CHARTS_MISSING = "The report has tables only: run pip install 'normplace[charts]' for its figures."


def charts_installed() -> bool:
    """Whether vl-convert, which renders charts, is installed."""
    return importlib.util.find_spec("vl_convert") is not None


class ChartRenderer:
    """Renders charts in the background, unless they are in the cache.

    Args:
        folder: The cache folder; None uses a folder in the user's cache.
        workers: Number of processes; None uses one per core, at most 8.
    """

    def __init__(self, folder: Path | None = None, workers: int | None = None) -> None:
        self._folder = folder or cache_folder() / "charts"
        self._processes: list[subprocess.Popen[str]] = []
        self._thread = threading.local()
        self._pool = ThreadPoolExecutor(workers or min(8, usable_cores()))
        self._charts: dict[str, Future[str]] = {}
        self.installed = charts_installed()
        # A chart depends on its request, on the code that renders it, and on the version of vl-convert.
        self._code = Path(chart_svg.__file__).read_bytes() + _vl_convert_version().encode()

    def start(self, requests: Iterable[str]) -> None:
        """Render these charts in the background, if charts can be rendered."""
        for request in requests if self.installed else ():
            if request not in self._charts:
                self._charts[request] = self._pool.submit(self._render, request)

    def __call__(self, request: str) -> str:
        """Return the SVG of a request.

        Raises:
            ValueError: If it cannot be rendered.
            ModuleNotFoundError: If vl-convert is not installed.
        """
        if not self.installed:
            raise ModuleNotFoundError("No module named 'vl_convert'")
        self.start([request])
        return self._charts[request].result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()  # closes its input, at which it exits
        self._remove_oldest()

    def _render(self, request: str) -> str:
        path = self._folder / hashlib.sha256(self._code + request.encode()).hexdigest()
        try:
            return zlib.decompress(path.read_bytes()).decode()
        except (OSError, zlib.error, UnicodeDecodeError):  # missing or damaged
            svg = self.render_uncached(request)
        with contextlib.suppress(UsageError):  # without a cache the next report only takes longer
            write_atomic(path, zlib.compress(svg.encode(), 1))
        return svg

    def render_uncached(self, request: str) -> str:
        """Render a chart in the process of this thread, without the cache."""
        if not hasattr(self._thread, "process"):
            command = [sys.executable, "-P", chart_svg.__file__]
            self._thread.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._processes.append(self._thread.process)
        process: subprocess.Popen[str] = self._thread.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        except (OSError, ValueError):
            del self._thread.process
            raise UsageError("the process that renders charts exited early: run the command again.") from None
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["svg"]

    def _remove_oldest(self) -> None:
        with contextlib.suppress(OSError):  # another process may remove the same files
            files = list(self._folder.iterdir())
            if len(files) > CACHED_CHARTS:
                for path in sorted(files, key=lambda path: path.stat().st_mtime)[: len(files) - CACHED_CHARTS]:
                    path.unlink(missing_ok=True)


def _vl_convert_version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("vl-convert-python")
    return "unknown"
