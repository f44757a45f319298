"""The rows of a regression: duplicates merged, standardized, and split for early stopping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_FEWEST_FOR_A_SPLIT = 20


@dataclass(frozen=True)
class Scaler:
    """Mean and standard deviation of each column; a constant column has the scale 1."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, values: Array, weight: Array) -> Scaler:
        """The weighted statistics of some rows."""
        # A first scale keeps the squares of very large or very small values finite.
        size = np.abs(values).max(0)
        size[size == 0] = 1
        mean = np.average(values / size, axis=0, weights=weight)
        spread = np.sqrt(np.average((values / size - mean) ** 2, axis=0, weights=weight))
        constant = spread <= 10 * np.finfo(np.float64).eps
        return cls(mean * size, np.where(constant, 1.0, spread * size))

    def standardize(self, values: Array) -> Array:
        """The values in standard deviations from the mean; too large ones become infinite."""
        with np.errstate(over="ignore"):
            return (values - self.mean) / self.scale


@dataclass(frozen=True)
class WeightedRows:
    """Distinct rows with their weights.

    Attributes:
        x: Features (rows, features).
        y: Targets (rows, targets).
        weight: Positive weights with mean 1.
    """

    x: Array
    y: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.x)

    @classmethod
    def merged(cls, x: Array, y: Array, weight: Array) -> WeightedRows:
        """Merge equal rows, adding their weights.

        A row that occurs twice then has the effect of one with the weight 2, and the order of the rows has none.

        Args:
            x: Features (rows, features).
            y: Targets (rows, targets).
            weight: Weights; rows with weight 0 are left out.
        """
        used = weight > 0
        rows, group = np.unique(np.hstack([x, y])[used], axis=0, return_inverse=True)
        total = np.bincount(group.ravel(), weight[used], minlength=len(rows))
        features = x.shape[1]
        return cls(rows[:, :features], rows[:, features:], total / total.mean())

    def split(self, fraction: float, random: np.random.RandomState) -> tuple[WeightedRows, WeightedRows | None]:
        """Rows to fit and rows that decide when to stop; the latter are None if there are fewer than 20 rows."""
        held_out = round(fraction * len(self))
        if len(self) < _FEWEST_FOR_A_SPLIT or held_out == 0:
            return self, None
        order = random.permutation(len(self))
        return self.select(order[held_out:]), self.select(order[:held_out])

    def select(self, index: NDArray[np.intp]) -> WeightedRows:
        """Some of the rows."""
        return WeightedRows(self.x[index], self.y[index], self.weight[index])
