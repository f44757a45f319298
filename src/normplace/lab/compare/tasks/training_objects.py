"""Training objects of other libraries as tasks: a Trainer of transformers, and a Lightning module with its data."""

from __future__ import annotations

from typing import Any

from normplace.lab.compare.task import Better, Task
from normplace.lab.compare.tasks.lightning import LightningTask, is_lightning
from normplace.lab.compare.tasks.trainer import TrainerTask, is_trainer


def is_training_object(value: object) -> bool:
    """Whether a value is a ``Trainer``, or a tuple of a Lightning module and its data module."""
    return is_trainer(value) or (isinstance(value, tuple | list) and len(value) == 2 and is_lightning(value[0]))


def training_object_task(value: Any, better: Better | None, start: str) -> Task:
    """The task of a training object.

    Args:
        value: A ``Trainer``, or a tuple of a Lightning module and its data module.
        better: Whether a ``smaller`` or ``larger`` measure is better; None for smaller. A Trainer reports a loss.
        start: ``fresh`` for new weights per seed, ``weights`` for a copy of the object's model.

    Raises:
        UsageError: If the object has no data for validation.
    """
    if is_trainer(value):
        return TrainerTask(value, start)
    module, data = value
    return LightningTask(module, data, start, better or "smaller")
