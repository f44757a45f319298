"""Checks of tensor values that are read together, because reading a value waits for the GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

# Numbers that are compared one by one in Python: on a CPU a few take less time than the overhead of tensor operations.
FEW = 128


def are_few(*tensors: Tensor) -> bool:
    """Whether tensors are on the CPU and so small that Python compares their values faster."""
    return tensors[0].device.type == "cpu" and sum(tensor.numel() for tensor in tensors) <= FEW


class DeferredChecks:
    """Conditions that must be true, in the order in which they are reported.

    As a context manager it settles them at the end. If an exception leaves the context, a condition that is false
    replaces it, because it may be the cause.
    """

    def __init__(self) -> None:
        self._conditions: list[tuple[Tensor | bool, Callable[[list[float]], bool], Callable[[], object]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.settle()

    def require(self, condition: Tensor | bool, failure: Callable[[], object]) -> None:
        """Add a condition.

        Args:
            condition: A boolean, or a boolean tensor of one element.
            failure: Raises the error if the condition is false.
        """
        self._conditions.append((condition, all, failure))

    def require_values(
        self, values: Tensor, condition: Callable[[list[float]], bool], failure: Callable[[], object]
    ) -> None:
        """Add a condition on a few values, which Python computes when they are read.

        Args:
            values: The values.
            condition: A function of the flattened values.
            failure: Raises the error if the condition is false.
        """
        self._conditions.append((values, condition, failure))

    def settle(self) -> None:
        """Read all conditions, and forget them; the first that is false raises its error."""
        conditions, self._conditions = self._conditions, []
        values = iter(_read([entry[0] for entry in conditions if isinstance(entry[0], Tensor)]))
        for value, condition, failure in conditions:
            if not (condition(next(values)) if isinstance(value, Tensor) else value):
                failure()


def _read(tensors: list[Tensor]) -> list[list[float]]:
    """The values of some tensors, flattened, waiting for a GPU once."""
    tensors = [tensor.detach().flatten() for tensor in tensors]
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.tolist() for tensor in tensors]
    device = tensors[0].device  # a model may have its output on another one than the samples
    together = iter(torch.cat([tensor.to(device) for tensor in tensors]).tolist())
    return [list(itertools.islice(together, tensor.numel())) for tensor in tensors]
