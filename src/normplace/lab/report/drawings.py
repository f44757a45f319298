"""Many charts at once: drawn by several processes, and kept in the user's cache folder for the next report."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.lab.report import drawing
from normplace.lab.tasks.data_files import cache_folder

KEPT = 2000
"""Drawings kept in the cache folder; the oldest are removed first."""


class Drawings:
    """Drawings of charts by their request; those that are not in the cache are drawn in the background.

    Args:
        folder: Where drawings are kept; a folder of the user's cache if None.
        workers: Processes that draw; as many as there are processors, and at most 8, if None.
    """

    def __init__(self, folder: Path | None = None, workers: int | None = None) -> None:
        self._folder = folder or cache_folder() / "charts"
        self._processes: list[subprocess.Popen[str]] = []
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(workers or min(8, len(os.sched_getaffinity(0))))
        self._drawings: dict[str, Future[str]] = {}
        # A drawing depends on its request, on the code that makes it, and on the version of vl-convert.
        self._code = Path(drawing.__file__).read_bytes() + _renderer().encode()

    def start(self, requests: Iterable[str]) -> None:
        """Draw these charts in the background."""
        for request in requests:
            if request not in self._drawings:
                self._drawings[request] = self._pool.submit(self._draw, request)

    def __call__(self, request: str) -> str:
        """The drawing that a request asks for.

        Raises:
            ValueError: If it cannot be drawn.
            ModuleNotFoundError: If vl-convert is not installed.
        """
        self.start([request])
        return self._drawings[request].result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()  # the end of its input ends it
        self._remove_oldest()

    def _draw(self, request: str) -> str:
        path = self._folder / hashlib.sha256(self._code + request.encode()).hexdigest()
        try:
            return zlib.decompress(path.read_bytes()).decode()
        except (OSError, zlib.error, UnicodeDecodeError):  # not there, or damaged: draw it
            drawn = self._ask(request)
        with contextlib.suppress(UsageError):  # without a cache the next report takes longer, no more
            write_atomic(path, zlib.compress(drawn.encode(), 1))
        return drawn

    def _ask(self, request: str) -> str:
        """Send the request to this thread's process and wait for its answer."""
        if importlib.util.find_spec("vl_convert") is None:
            raise ModuleNotFoundError("No module named 'vl_convert'")
        if not hasattr(self._own, "process"):
            command = [sys.executable, "-P", drawing.__file__]
            self._own.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._processes.append(self._own.process)
        process: subprocess.Popen[str] = self._own.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        except (OSError, ValueError):
            del self._own.process
            raise UsageError("the process that draws charts ended early: run the command again.") from None
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["svg"]

    def _remove_oldest(self) -> None:
        with contextlib.suppress(OSError):  # another process may remove the same files
            files = list(self._folder.iterdir())
            if len(files) > KEPT:
                for path in sorted(files, key=lambda path: path.stat().st_mtime)[: len(files) - KEPT]:
                    path.unlink(missing_ok=True)


def _renderer() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("vl-convert-python")
    return "unknown"
