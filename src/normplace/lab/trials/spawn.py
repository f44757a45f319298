"""Worker processes that do not run the user's script again.

A spawned process normally imports the main module of its parent. If that is a script without a guard
(``if __name__ == "__main__":``), the process would start the same trials. Workers import what they need by name, so the
main module is hidden from them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any


class _Worker(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        with _hidden_main_module():
            return SpawnProcess._Popen(process_obj)


class WorkerContext(SpawnContext):
    """A spawn context whose processes do not import the main module."""

    Process = _Worker  # pyright: ignore[reportAssignmentType]


@contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Remove what names the main module: ``multiprocessing`` sends it to a process that starts."""
    main = vars(sys.modules["__main__"])
    hidden = {name: main.pop(name) for name in ("__spec__", "__file__") if name in main}
    main["__spec__"] = None  # must exist
    try:
        yield
    finally:
        main.update(hidden)
