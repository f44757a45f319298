"""When a run has diverged: its loss or gradient is no number, or its loss stays far above what it was.

A loss is a spike when it lies more than ``spike`` nats above the median of the last losses that were none. A single
spike is survived by many runs; ``patience`` of them in a row are a divergence. Both numbers are ours.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

REMEMBERED = 64


class DivergenceDetector:
    """Looks at every step's loss and gradient.

    Args:
        spike: Nats above the median that make a spike.
        patience: Spikes in a row that make a divergence.

    Example:
        >>> watch = DivergenceDetector(spike=2.0, patience=2)
        >>> [watch.look(loss, 1.0) for loss in (3.0, 2.9, 6.0, 2.8, 6.0)]
        [None, None, None, None, None]
        >>> watch.look(7.0, 1.0)
        'the loss stayed more than 2 nats above its median of 2.9 for 2 steps'
    """

    def __init__(self, spike: float, patience: int) -> None:
        self.spike, self.patience = spike, patience
        self.usual: deque[float] = deque(maxlen=REMEMBERED)
        self.spikes = self.in_a_row = 0

    def look(self, loss: float, gradient: float) -> str | None:
        """Why the run has diverged with this step, if it has.

        Args:
            loss: Of the step, in nats.
            gradient: Norm of its gradient before clipping.
        """
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(gradient):
            return f"the gradient overflowed: its norm is {gradient}"
        median = statistics.median(self.usual) if self.usual else loss
        if loss <= median + self.spike:
            self.usual.append(loss)
            self.in_a_row = 0
            return None
        self.spikes += 1
        self.in_a_row += 1
        if self.in_a_row < self.patience:
            return None
        return f"the loss stayed more than {self.spike:g} nats above its median of {median:g} for {self.patience} steps"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"usual": list(self.usual), "spikes": self.spikes, "in_a_row": self.in_a_row}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        self.usual = deque(state["usual"], maxlen=REMEMBERED)
        self.spikes, self.in_a_row = state["spikes"], state["in_a_row"]
