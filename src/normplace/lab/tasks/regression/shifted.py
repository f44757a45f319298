"""Regression data, its scaling, and R²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from normplace.errors import UsageError


@dataclass(frozen=True)
class Regression:
    """Inputs and targets, one row each."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class ShiftedRegression:
    """Training rows, and two test sets: one like them, one unlike them.

    Args:
        train: What is learned from.
        inside: Rows drawn like the training rows (ID).
        outside: Rows from where no training row comes (OOD).
    """

    train: Regression
    inside: Regression
    outside: Regression

    def standardized(self) -> tuple[ShiftedRegression, Standardizer]:
        """In float32, every column of inputs and targets with the training rows' mean 0 and deviation 1.

        Returns:
            The rows, and what turns predictions back into the target's own unit.
        """
        inputs, targets = Standardizer.of(self.train.x), Standardizer.of(self.train.y)
        scaled = (
            Regression(inputs(part.x).float(), targets(part.y).float())
            for part in (self.train, self.inside, self.outside)
        )
        return ShiftedRegression(*scaled), targets


@dataclass(frozen=True)
class Standardizer:
    """Shift and scale of columns, taken from the training rows alone."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """The one that gives ``rows`` mean 0 and deviation 1; a constant column is shifted only."""
        deviation = rows.std(0, correction=0)
        return cls(rows.mean(0), torch.where(deviation > 0, deviation, 1.0))

    def __call__(self, rows: Tensor) -> Tensor:
        """The rows in standard units."""
        return (rows - self.mean) / self.deviation

    def undo(self, rows: Tensor) -> Tensor:
        """Standard units back in the rows' own."""
        return rows.to(self.mean.dtype) * self.deviation + self.mean


def hold_out(n: int, train: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Row numbers of ``train`` random rows out of ``n``, and of the others.

    Args:
        n: How many there are.
        train: How many to learn from.
        generator: Source of the choice.

    Raises:
        UsageError: If no row would be left on one side.
    """
    if not 0 < train < n:
        raise UsageError(f"{train} of {n} rows cannot be set apart for training: both sides need at least one.")
    order = torch.randperm(n, generator=generator)
    return order[:train], order[train:]


def r_squared(prediction: Tensor, target: Tensor) -> float:
    """One minus the squared error over that of predicting the targets' own mean.

    Example:
        >>> r_squared(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
        1.0
    """
    return float(1 - (prediction - target).square().mean() / target.var(correction=0))
