"""Regression data with test sets inside and outside the training distribution, standardization, and R²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from normplace.errors import UsageError


@dataclass(frozen=True)
class Regression:
    """Inputs and targets, one row per sample."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class ShiftedRegression:
    """A training set, and two test sets.

    Args:
        train: Training samples.
        inside: Test samples from the training distribution (ID).
        outside: Test samples outside it (OOD).
    """

    train: Regression
    inside: Regression
    outside: Regression

    def standardized(self) -> tuple[ShiftedRegression, Standardizer]:
        """Standardize inputs and targets by the training set, in float32.

        Returns:
            The data, and the standardizer of the targets, which converts predictions back to their unit.
        """
        inputs, targets = Standardizer.of(self.train.x), Standardizer.of(self.train.y)
        scaled = (
            Regression(inputs(part.x).float(), targets(part.y).float())
            for part in (self.train, self.inside, self.outside)
        )
        return ShiftedRegression(*scaled), targets


@dataclass(frozen=True)
class Standardizer:
    """Mean and standard deviation of each column."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """The standardizer that gives ``rows`` mean 0 and standard deviation 1; a constant column is only shifted."""
        deviation = rows.std(0, correction=0)
        return cls(rows.mean(0), torch.where(deviation > 0, deviation, 1.0))

    def __call__(self, rows: Tensor) -> Tensor:
        """Standardize the rows."""
        return (rows - self.mean) / self.deviation

    def undo(self, rows: Tensor) -> Tensor:
        """Convert standardized rows back to their unit."""
        return rows.to(self.mean.dtype) * self.deviation + self.mean


def hold_out(n: int, train: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Indices of ``train`` random rows out of ``n``, and of the other rows.

    Raises:
        UsageError: If one part is empty.
    """
    if not 0 < train < n:
        raise UsageError(f"cannot use {train} of {n} rows for training: both parts need at least one.")
    order = torch.randperm(n, generator=generator)
    return order[:train], order[train:]


def r_squared(prediction: Tensor, target: Tensor) -> float:
    """One minus the mean squared error divided by the variance of the targets.

    Examples:
        >>> r_squared(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
        1.0
    """
    return float(1 - (prediction - target).square().mean() / target.var(correction=0))
