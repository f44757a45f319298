"""A task from the user's function ``make(seed)``, with training batches held out where it has no validation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from normplace._shared.references import importable_reference, load_reference
from normplace.errors import UsageError, cause, expect_choice
from normplace.lab.compare.edits import importable_name
from normplace.lab.compare.held_out import hold_out
from normplace.lab.compare.task import BETTER, Better, Start, Task, Validate, task_reference
from normplace.lab.compare.tasks.training_objects import is_training_object, training_object_task

SHAPE = "(model, batches, loss) or (model, batches, loss, validate)"


class FactoryTask(Task):
    """The task of a function ``make(seed) -> (model, batches, loss)``, with an optional fourth element ``validate``.

    ``loss(model, batch)`` returns a scalar. ``validate(model, split)`` returns the measure on the held-out data
    ``choose`` or ``report``. A ``validate(model)`` without splits is reported, and the loss on held-out training
    batches chooses; without ``validate``, both are losses on held-out training batches. The function may also return a
    :class:`~normplace.lab.compare.task.Start`.

    Args:
        function: The function, or ``file.py:name`` or ``package.module:name``.
        better: Whether a ``smaller`` or ``larger`` measure is better.

    Raises:
        UsageError: If it cannot be imported, or is not a function.
    """

    def __init__(self, function: str | Callable[[int], Any], better: Better = "smaller") -> None:
        expect_choice("value of better", better, BETTER)
        self.better = better
        if isinstance(function, str):
            self.name = function
            self.function = load_reference(function)
            target = importable_reference(function)
        else:
            self.name = getattr(function, "__name__", type(function).__name__)
            self.function = function
            target = importable_name(function)
        if not callable(self.function):
            raise UsageError(f"{self.name!r} is not a function: write make(seed) -> {SHAPE}.")
        if target is not None:
            self.code = (target,)
            self.reference = task_reference(FactoryTask, {"function": target, "better": better})

    def start(self, seed: int) -> Start:
        """Call the function.

        Raises:
            UsageError: If it fails, or returns something else.
        """
        try:
            result = self.function(seed)
        except UsageError:
            raise
        except Exception as error:
            if not _takes_seed(self.function):
                raise UsageError(f"{self.name} must take a seed, and return {SHAPE}.") from error
            raise UsageError(f"{self.name}({seed}) failed ({cause(error)}): call it to see where.") from error
        if isinstance(result, Start):
            return result
        if is_training_object(result):
            task = training_object_task(result, self.better, "weights")
            if task.better != self.better:
                raise UsageError(f"{self.name} returns a Trainer, whose loss is compared: leave better='larger' out.")
            self.notes = (f"Each seed calls {self.name}.", *task.notes[1:])
            return task.start(seed)
        if not isinstance(result, tuple | list) or len(result) not in (3, 4) or not isinstance(result[0], nn.Module):
            raise UsageError(f"{self.name} must return {SHAPE}, got {_described(result)}.")
        model, batches, loss, *rest = result
        validate = rest[0] if rest else None
        if validate is not None and _takes_split(validate):
            return Start(model, batches, loss, validate)
        try:
            held_out = hold_out(batches, loss, self.name)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"the batches of {self.name} cannot be read ({cause(error)}): iterate over them to see where."
            ) from error
        self.notes = (held_out.note if validate is None else f"{held_out.note} They choose the learning rate only.",)
        if validate is None and self.better == "larger":
            raise UsageError(f"{self.name} returns no validate, so its loss is compared: leave better='larger' out.")
        measure = held_out.validate if validate is None else self._with_report(validate, held_out.validate)
        return Start(model, held_out.batches, loss, measure)

    def _with_report(self, report: Callable[[nn.Module], float], choose: Validate) -> Validate:
        """Report the user's measure, and choose by the loss on held-out batches."""
        sign = 1.0 if self.better == "smaller" else -1.0

        def validate(model: nn.Module, split: str) -> float:
            return report(model) if split == "report" else sign * choose(model, split)

        return validate


def _takes_seed(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with one argument."""
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def _takes_split(validate: Any) -> bool:
    """Whether a validation takes the model and a split, not only the model."""
    if not callable(validate):
        raise UsageError(f"validate must be a function of the model and a split, got {type(validate).__name__}.")
    parameters = inspect.signature(validate).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    is_open = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    return is_open or sum(parameter.kind in kinds for parameter in parameters) > 1


def _described(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f"{len(result)} elements ({', '.join(type(element).__name__ for element in result)})"
    return type(result).__name__
