"""The task that a user passes: a task, a function, or the name of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normplace._shared.references import load_reference
from normplace.errors import UsageError
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.task import Better, Task, load_task

TaskLike = Task | str | Callable[[int], Any]


def as_task(value: TaskLike, better: Better | None = None) -> Task:
    """Convert what a user passes to a task.

    Args:
        value: A task, a function ``make(seed)``, or ``file.py:name`` or ``package.module:name`` of either.
        better: Whether a ``smaller`` or ``larger`` measure is better, for functions; None for smaller.

    Raises:
        UsageError: If it is none of these.
    """
    if isinstance(value, str):
        if "?" in value or isinstance(load_reference(value), Task):
            return load_task(value)
        return FactoryTask(value, better or "smaller")
    if isinstance(value, Task):
        return value
    if callable(value):
        return FactoryTask(value, better or "smaller")
    raise UsageError(f"a task is a function make(seed) or its name, such as file.py:make, got {type(value).__name__}.")
