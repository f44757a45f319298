"""Helpers for the tests of built-in tasks: a few steps of training without the machinery around them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from normplace.lab.compare.edits import parse_edits
from normplace.lab.compare.task import Start, Task, first_call


def first_batch(start: Start) -> Any:
    """The first batch of the first epoch."""
    return next(iter(start.batches(0) if callable(start.batches) else start.batches))


def edited(task: Task, edit: str, seed: int = 0) -> tuple[Start, nn.Module]:
    """The start of a seed, and its model after an edit."""
    start = task.start(seed)
    inputs = start.inputs or first_call(start.model, start.loss, first_batch(start))
    return start, parse_edits([edit])[0].apply(start.model, inputs)


def trained(task: Task, edit: str, steps: int, learning_rate: float = 3e-3) -> dict[str, float]:
    """The measures of an edited model after a few steps."""
    start, model = edited(task, edit)
    optimizer = start.optimizer(model, learning_rate)
    epoch, taken = 0, 0
    while taken < steps:
        for batch in start.batches(epoch) if callable(start.batches) else start.batches:
            optimizer.zero_grad()
            start.loss(model, batch).backward()
            optimizer.step()
            taken += 1
            if taken == steps:
                break
        epoch += 1
    with torch.no_grad():
        return {split: start.validate(model.eval(), split) for split in ("choose", "report")}
