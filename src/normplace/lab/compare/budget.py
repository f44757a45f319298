"""The budget of a comparison: how long it may take, or how long each reported training is."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from normplace.errors import UsageError
from normplace.lab.report.text import duration

UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
LEAST_STEPS = 20
"""Fewest steps of a reported training."""
MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class Budget:
    """A wall time for the whole comparison, or a number of steps for each reported training."""

    seconds: float | None = None
    steps: int | None = None

    @classmethod
    def parse(cls, budget: str | int) -> Budget:
        """Read a budget.

        Args:
            budget: A time such as ``"30m"``, ``"1h30m"`` or ``"90s"``, or steps such as ``2000`` or ``"2000 steps"``.

        Raises:
            UsageError: If it is neither, or too small.

        Examples:
            >>> Budget.parse("1h30m").seconds, Budget.parse("500 steps").steps
            (5400.0, 500)
        """
        text = str(budget).replace(" ", "").replace("_", "").lower()
        if match := re.fullmatch(r"(\d+)(steps?)?", text):
            steps = int(match[1])
            if not LEAST_STEPS <= steps <= MOST_STEPS:
                raise UsageError(f"a training has {LEAST_STEPS} to {MOST_STEPS:,} steps, got {budget!r}.")
            return cls(steps=steps)
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
        if not seconds or "".join(number + unit for number, unit in parts) != text:
            raise UsageError(f"the budget {budget!r} is neither a time such as 30m nor steps such as 2000.")
        return cls(seconds=seconds)

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.seconds is None else duration(self.seconds)


def makespan(seconds: Iterable[float], jobs: int) -> float:
    """Wall time of tasks that start in order as soon as one of ``jobs`` workers is free.

    Examples:
        >>> makespan([3, 2, 2], jobs=2)
        4.0
    """
    workers = [0.0] * jobs
    for length in seconds:
        heapq.heapreplace(workers, workers[0] + length)
    return max(workers)


def largest_steps(fits: Callable[[int], bool]) -> int | None:
    """The largest number of steps that fits, by bisection; None if not even the fewest steps do."""
    if not fits(LEAST_STEPS):
        return None
    low, high = LEAST_STEPS, MOST_STEPS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
