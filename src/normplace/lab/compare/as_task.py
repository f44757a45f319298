"""The task that a user passes: a task, a function, a training object of another library, or the name of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from normplace._shared.references import load_reference
from normplace.errors import UsageError
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.task import Better, Task, load_task
from normplace.lab.compare.tasks.training_objects import is_training_object, training_object_task

TaskLike = Task | str | Callable[[int], Any] | tuple[Any, Any]


def as_task(value: TaskLike, better: Better | None = None, start: str = "fresh") -> Task:
    """Convert what a user passes to a task.

    Args:
        value: A task, a function ``make(seed)``, a ``Trainer`` of transformers, a tuple of a Lightning module and its
            data module, or ``file.py:name`` or ``package.module:name`` of one of them.
        better: Whether a ``smaller`` or ``larger`` measure is better, for functions and Lightning; None for smaller.
        start: ``fresh`` or ``weights``, for the model of a Trainer or a Lightning module.

    Raises:
        UsageError: If it is none of these, or the other measure of a task is better.
    """
    task = _converted(value, better, start)
    if better is not None and task.better != better:
        raise UsageError(f"of the measure of {task.name}, {task.better} is better: leave better={better!r} out.")
    return task


def _converted(value: TaskLike, better: Better | None, start: str) -> Task:
    if isinstance(value, str):
        if "?" in value or isinstance(loaded := load_reference(value), Task):
            return load_task(value)
        if is_training_object(loaded):
            return training_object_task(loaded, better, start)
        return FactoryTask(value, better or "smaller")
    if isinstance(value, Task):
        return value
    if is_training_object(value):
        return training_object_task(value, better, start)
    if callable(value) and not isinstance(value, nn.Module):
        return FactoryTask(value, better or "smaller")
    raise UsageError(
        "a task is a function make(seed) that returns (model, batches, loss), its name such as file.py:make, a "
        f"Trainer, or a Lightning module with its data module, got {type(value).__name__}."
    )
