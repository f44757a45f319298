"""A task of a comparison: the model, data and loss that every edit is trained with."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from normplace._shared.references import load_reference
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError
from normplace.lab.compare.statistics import Better
from normplace.lab.train.optimizer import parameter_groups

SPLITS = ("choose", "report")
"""The held-out data that chooses a learning rate, and the other held-out data that is reported."""
BETTER = get_args(Better)
WEIGHT_DECAY = 0.01

Loss = Callable[[nn.Module, Any], Tensor]
Validate = Callable[[nn.Module, str], float]
Batches = Iterable[Any] | Callable[[int], Iterable[Any]]


def adamw(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW over all trainable parameters, with weight decay on matrices only."""
    groups = [group for group in parameter_groups(model, WEIGHT_DECAY) if group["params"]]
    return torch.optim.AdamW(groups, lr=learning_rate)


@dataclass
class Start:
    """What one training starts from.

    Args:
        model: A new model, which no other training shares.
        batches: The training data: an iterable that is repeated when it ends, or a function from an epoch to its
            iterable. An iterator cannot be repeated; training stops with an error if it runs out.
        loss: From the model and a batch to a scalar.
        validate: From the model and a split, ``choose`` or ``report``, to the measure on held-out data. The model is
            in evaluation mode, without gradients.
        inputs: Positional and keyword arguments of one call of the model, for edits; None to record them from the loss
            of the first batch.
        optimizer: From the model and a learning rate to an optimizer. The schedule multiplies the learning rate of each
            parameter group.
        clip: Largest gradient norm; None to leave gradients unclipped.
        can_rise: Whether the loss of a training that works may end above its first value, as that of a policy may; a
            training whose loss does otherwise counts as diverged.
        scaler: Multiplies the loss so that float16 does not round its gradients to zero, and skips steps whose
            gradients overflow; None without float16. Its state belongs to one training.
        compiling: Compiles the edited model in place before its first step; signals are measured without it.
    """

    model: nn.Module
    batches: Batches
    loss: Loss
    validate: Validate
    inputs: Arguments | None = None
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] = adamw
    clip: float | None = 1.0
    can_rise: bool = False
    scaler: torch.amp.GradScaler | None = None
    compiling: Callable[[nn.Module], None] | None = None


class Task(ABC):
    """A training that can be started from any seed.

    Attributes:
        name: Its name in results.
        better: Whether a ``smaller`` or ``larger`` measure is better.
        learning_rate: Centre of the learning rates that are tried first.
        reference: Text from which :func:`load_task` builds the same task in a worker process; None for a task that
            exists in this process only.
        code: References such as ``my_gnn:make`` of the user's code, which is sent to workers on other machines.
        notes: Sentences for the result, such as which data is held out.
    """

    name: str
    better: Better = "smaller"
    learning_rate: float = 1e-3
    reference: str | None = None
    code: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @abstractmethod
    def start(self, seed: int) -> Start:
        """Build the model and the data of one seed.

        The global random generators of Python, NumPy and PyTorch are seeded before the call.
        """

    def describe(self) -> dict[str, Any]:
        """What the result reports about the task, as JSON values."""
        return {"name": self.name, "better": self.better, "notes": list(self.notes)}


def task_reference(kind: type[Task], settings: Mapping[str, Any]) -> str:
    """Text from which :func:`load_task` builds ``kind(**settings)``.

    Examples:
        >>> task_reference(Task, {"seed": 1})
        'normplace.lab.compare.task:Task?{"seed": 1}'
    """
    return f"{kind.__module__}:{kind.__qualname__}?{json.dumps(dict(settings), sort_keys=True)}"


def load_task(reference: str) -> Task:
    """Build a task from its reference.

    Raises:
        UsageError: If it cannot be imported, or is not a task.
    """
    name, _, settings = reference.partition("?")
    value = load_reference(name)
    if isinstance(value, type):
        value = value(**json.loads(settings or "{}"))
    if not isinstance(value, Task):
        raise UsageError(f"{name!r} is not a task: name a function make(seed) or a normplace.lab.compare.Task.")
    return value


class _FirstCall(Exception):
    """Ends a loss after the model's first call."""


def first_call(model: nn.Module, loss: Loss, batch: Any) -> Arguments:
    """The arguments with which a loss calls the model.

    Raises:
        UsageError: If the loss does not call the model itself.
    """
    calls: list[Arguments] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))
        raise _FirstCall

    handle = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        with torch.no_grad():
            loss(model, batch)
    except _FirstCall:
        return calls[0]
    finally:
        handle.remove()
    raise UsageError("the loss does not call the model itself: compute it from model(...), not from a submodule.")
