"""Classify a sequence sampled over many decades: it grows, settles, swings, or is unclear.

A finite sample proves nothing about a limit, so the criteria are strict. A sequence grows if it follows a steady power
of the distance. It settles if its changes per decade shrink geometrically, so that all further decades add at most as
much as the last one. Logarithms do neither and are unclear. The thresholds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# The smallest power that differs from a logarithm: (log t)^k has local slope k/ln t, under 0.25 for k ≤ 5 at 1e10.
_LEAST_POWER = 0.25
# No usual power of a logarithm has this slope at such distances.
_SURE_POWER = 0.5
# Changes below this share of the largest value are rounding.
_NOISE = 1e-9
# Number of last decades used; a shorter sequence is only checked for fast growth.
_TAIL = 4


@dataclass(frozen=True)
class Growth:
    """The behaviour of a sequence at large distances.

    Attributes:
        status: "grows", "settles", "swings" (stays in range without settling) or "unclear".
        exponent: Slope of log level against log distance over the last decades.
        decades: Range of distances before an overflow.
        first: Level at the nearest point.
        last: Level at the farthest usable point.
    """

    status: str
    exponent: float
    decades: float
    first: float
    last: float


def classify(distance: Tensor, values: Tensor, usable: int) -> Growth:
    """Classify the first ``usable`` values of a sequence.

    Args:
        distance: Increasing distances (J,), geometric.
        values: Values (J, outputs) at these distances.
        usable: Number of values that are finite and come from finite intermediate values.
    """
    if usable == 0:
        nan = float("nan")
        return Growth("unclear", nan, 0.0, nan, nan)
    log_t = distance[:usable].log10()
    values = values[:usable]
    level = values.abs().amax(1)
    decades = float(log_t[-1] - log_t[0])
    top = float(level.max())
    first, last = float(level[0]), float(level[-1])
    if usable < 2:
        return Growth("unclear", float("nan"), decades, first, last)
    if top == 0:
        return Growth("settles" if decades >= _TAIL else "unclear", 0.0, decades, first, last)
    log_level = level.clamp(min=1e-30 * top).log10()
    if decades < _TAIL - 1e-9:
        slope = float((log_level[-1] - log_level[-2]) / (log_t[-1] - log_t[-2]))
        return Growth("grows" if slope >= _SURE_POWER else "unclear", slope, decades, first, last)

    highest, changes = [], []
    for window in range(_TAIL, 0, -1):
        # Both ends belong to the decade, so that every step between samples is included.
        inside = (log_t >= log_t[-1] - window - 1e-6) & (log_t <= log_t[-1] - window + 1 + 1e-6)
        highest.append(float(log_level[inside].max()))
        changes.append(float((values[inside].amax(0) - values[inside].amin(0)).max()))
    late = (highest[3] - highest[1]) / 2
    early = (highest[2] - highest[0]) / 2
    # A swing that rises over the last decades has been as high before; a power has not.
    before = log_level[log_t <= log_t[-1] - _TAIL + 1e-6]
    rising = highest[3] - float(before.max()) >= 0.5 * late * _TAIL
    noise = _NOISE * top
    shrinking = changes[3] <= 0.5**3 * changes[0] and changes[3] <= 0.75 * changes[2]
    if changes[3] <= noise or shrinking:
        status = "settles"
    elif rising and (late >= _SURE_POWER or (late >= _LEAST_POWER and late >= 0.9 * early)):
        status = "grows"
    elif not highest[0] < highest[1] < highest[2] < highest[3] and late < _LEAST_POWER:
        status = "swings"
    else:
        status = "unclear"
    return Growth(status, late, decades, first, last)


def combined(statuses: list[str]) -> str:
    """One status for many rays: it grows if one ray grows, and settles only if all rays settle."""
    if "grows" in statuses:
        return "grows"
    if "unclear" in statuses:
        return "unclear"
    return "swings" if "swings" in statuses else "settles"


def steepest(growths: list[Growth]) -> float:
    """The largest finite exponent."""
    exponents = torch.tensor([growth.exponent for growth in growths], dtype=torch.float64)
    known = exponents[torch.isfinite(exponents)]
    return float(known.max()) if len(known) else float("nan")
