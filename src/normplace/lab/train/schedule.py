"""Learning rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normplace._shared.fields import check_types
from normplace.errors import UsageError, expect_choice, expect_ranges

SCHEDULES = ("cosine", "wsd", "constant")


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up, followed by one of three shapes.

    ``cosine`` decays along half a cosine over all remaining steps. ``wsd`` (warm-up, stable, decay: Hu et al. 2024,
    arXiv 2404.06395) stays at the peak and decays at the end; the linear decay is our choice. ``constant`` stays at
    the peak.

    Args:
        peak: Peak learning rate.
        steps: Number of steps.
        kind: ``cosine``, ``wsd`` or ``constant``.
        warm_up: Steps of the warm-up; the first has a learning rate of peak / warm_up.
        decay: Fraction of all steps in which ``wsd`` decays.
        floor: Learning rate after the last step, as a fraction of the peak.

    Raises:
        UsageError: If the kind is unknown or a number is out of range.

    Examples:
        >>> schedule = Schedule(1.0, 10, "wsd", warm_up=2, decay=0.4, floor=0.0)
        >>> [schedule.learning_rate(step) for step in range(10)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    peak: float
    steps: int
    kind: str = "cosine"
    warm_up: int = 0
    decay: float = 0.2
    floor: float = 0.1

    def __post_init__(self) -> None:
        check_types(self)
        expect_choice("schedule", self.kind, SCHEDULES)
        if not 0 < self.peak < math.inf:
            raise UsageError(f"the learning rate must be positive and finite, got {self.peak}.")
        if not 0 <= self.warm_up < self.steps:
            raise UsageError(f"a warm-up of {self.warm_up} steps does not fit into {self.steps}: lower warm_up.")
        expect_ranges(self, "decay", "floor", least=0, most=1)

    @property
    def decay_start(self) -> int:
        """The number of steps before the learning rate falls below its peak; all of them if it never does."""
        if self.kind == "constant":
            return self.steps
        return max(self.warm_up, self.steps - round(self.decay * self.steps)) if self.kind == "wsd" else self.warm_up

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        if self.kind == "constant":
            return self.peak
        begin = self.decay_start
        progress = max(0, step - begin) / max(1, self.steps - begin)
        decayed = (1 - math.cos(math.pi * progress)) / 2 if self.kind == "cosine" else progress
        return self.peak * (1 - (1 - self.floor) * decayed)
