"""Checks of tensor values that are read together, because reading a value waits for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor


class DeferredChecks:
    """Conditions that must be true, in the order in which they are reported.

    As a context manager it settles them at the end. If an exception leaves the context, a condition that is false
    replaces it, because it may be the cause.
    """

    def __init__(self) -> None:
        self._conditions: list[tuple[Tensor, Callable[[], object]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.settle()

    def require(self, condition: Tensor, failure: Callable[[], object]) -> None:
        """Add a condition.

        Args:
            condition: A boolean tensor of one element.
            failure: Raises the error if the condition is false.
        """
        self._conditions.append((condition, failure))

    def settle(self) -> None:
        """Read all conditions, and forget them; the first that is false raises its error."""
        conditions, self._conditions = self._conditions, []
        if not conditions:
            return
        device = conditions[0][0].device  # a model may have its output on another device than the samples
        values = torch.stack([condition.to(device) for condition, _ in conditions]).tolist()
        for value, (_, failure) in zip(values, conditions, strict=True):
            if not value:
                failure()
