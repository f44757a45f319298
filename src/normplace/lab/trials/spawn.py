"""Worker processes that start fast and do not run the user's script again.

A new process imports PyTorch, which takes seconds. On Linux, one server process per program imports it once, and
workers are forks of that server. It computes nothing, so it starts no threads and no CUDA; OpenBLAS ends its idle
threads before a fork. On other platforms each worker is a new process. Libraries that read environment variables while
they are loaded see those of the server's start; everything else sees those of the worker's start.

Both kinds normally import the main module of their parent. If that is a script without a guard
(``if __name__ == "__main__":``), the process would start the same trials. Workers import what they need by name, so the
main module is hidden from them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

if sys.platform == "linux":
    from multiprocessing.context import ForkServerContext as _Context
    from multiprocessing.context import ForkServerProcess as _Process
else:
    from multiprocessing.context import SpawnContext as _Context
    from multiprocessing.context import SpawnProcess as _Process

PRELOADED = ["normplace.lab.trials.preload"]
"""Modules that the server imports before it starts workers."""


class _Worker(_Process):  # pyright: ignore[reportGeneralTypeIssues]
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        with _hidden_main_module():
            return _Process._Popen(process_obj)


class WorkerContext(_Context):  # pyright: ignore[reportGeneralTypeIssues]
    """A context of ``multiprocessing`` whose processes do not import the main module."""

    Process = _Worker  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload(PRELOADED)  # has no effect on a server that runs, and on other platforms


def set_environment(variables: Mapping[str, str]) -> None:
    """Give this process the environment variables of another; a fork has those from the start of its server."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


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
