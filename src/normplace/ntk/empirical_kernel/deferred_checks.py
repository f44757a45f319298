"""Checks of tensor values that are read together, because reading a value waits for the GPU."""

from __future__ import annotations

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
        self._conditions: list[tuple[Tensor | bool, Callable[[], object]]] = []

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
        self._conditions.append((condition, failure))

    def settle(self) -> None:
        """Read all conditions, and forget them; the first that is false raises its error."""
        conditions, self._conditions = self._conditions, []
        tensors = [condition for condition, _ in conditions if isinstance(condition, Tensor)]
        device = tensors[0].device if tensors else None  # a model may have its output on another one than the samples
        values = iter(torch.stack([tensor.to(device) for tensor in tensors]).tolist() if tensors else ())
        for condition, failure in conditions:
            if not (next(values) if isinstance(condition, Tensor) else condition):
                failure()
