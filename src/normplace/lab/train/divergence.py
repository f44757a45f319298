"""Detect divergence: the loss or gradient is not finite, or the loss stays far above its median.

A loss is a spike if it is more than ``spike`` nats above the median of the latest losses that were not spikes. Many
runs recover from a single spike; ``patience`` consecutive spikes count as divergence. Both thresholds are our choice.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW = 64
"""Losses that the median is taken over."""


class DivergenceDetector:
    """Checks the loss and gradient of every step.

    Args:
        spike: Nats above the median that make a loss a spike.
        patience: Consecutive spikes that count as divergence.

    Examples:
        >>> detector = DivergenceDetector(spike=2.0, patience=2)
        >>> [detector.update(loss, 1.0) for loss in (3.0, 2.9, 6.0, 2.8, 6.0)]
        [None, None, None, None, None]
        >>> detector.update(7.0, 1.0)
        'the loss stayed more than 2 nats above its median of 2.9 for 2 steps'
    """

    def __init__(self, spike: float, patience: int) -> None:
        self.spike, self.patience = spike, patience
        self.normal_losses: deque[float] = deque(maxlen=WINDOW)
        self.spikes = self.in_a_row = 0

    def update(self, loss: float, gradient_norm: float) -> str | None:
        """Return why the run has diverged with this step, or None.

        Args:
            loss: Loss of the step, in nats.
            gradient_norm: Norm of its gradient before clipping.
        """
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(gradient_norm):
            return f"the gradient overflowed: its norm is {gradient_norm}"
        median = statistics.median(self.normal_losses) if self.normal_losses else loss
        if loss <= median + self.spike:
            self.normal_losses.append(loss)
            self.in_a_row = 0
            return None
        self.spikes += 1
        self.in_a_row += 1
        if self.in_a_row < self.patience:
            return None
        return f"the loss stayed more than {self.spike:g} nats above its median of {median:g} for {self.patience} steps"

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {"normal_losses": list(self.normal_losses), "spikes": self.spikes, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.normal_losses = deque(state["normal_losses"], maxlen=WINDOW)
        self.spikes, self.in_a_row = state["spikes"], state["in_a_row"]
