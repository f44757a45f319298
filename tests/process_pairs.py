"""Two processes that train together: like the workers of studies, forks of a server that has imported PyTorch."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from normplace.lab.trials.spawn import WorkerContext, set_environment


def run_pair(folder: Path, function: Callable[..., Any], *arguments: Any, seconds: float = 200) -> None:
    """Call ``function(rank, *arguments)`` in two processes, and assert that neither fails.

    Args:
        folder: An empty folder; a process writes its traceback there.
        function: A function of a module.
        *arguments: Its further arguments.
        seconds: Time after which the processes are killed.
    """
    context = WorkerContext()
    calls = [(rank, folder / f"error-{rank}.txt", dict(os.environ), function, arguments) for rank in range(2)]
    processes = [context.Process(target=_call, args=call) for call in calls]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(seconds)
    finally:
        for process in processes:
            process.kill()
            process.join()
    errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
    assert [process.exitcode for process in processes] == [0, 0], "\n".join(errors)


def _call(
    rank: int, errors: Path, environment: Mapping[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    set_environment(environment)
    torch.set_num_threads(1)
    try:
        function(rank, *arguments)
    except BaseException:
        errors.write_text(traceback.format_exc())
        raise
