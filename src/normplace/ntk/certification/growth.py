"""Does a sequence sampled over many decades grow, settle, swing, or leave the question open?

A finite sample proves nothing about a limit, so the rules ask for what a guess could not give: growth
means a steady power of the distance; settling means changes per decade that shrink geometrically, so that
all the decades to come add no more than the last one did. Logarithms do neither, and stay unclear. The
thresholds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# The smallest power told from a logarithm: (log t)^k has local slope k/ln t, under 0.25 for k ≤ 5 at 1e10.
_LEAST_POWER = 0.25
# No power of a logarithm met in practice has this slope so far out.
_SURE_POWER = 0.5
# Changes below this share of the largest value seen are rounding.
_NOISE = 1e-9
# Decades that the verdict rests on; a shorter sample is judged for violent growth only.
_TAIL = 4


@dataclass(frozen=True)
class Growth:
    """What a sequence does far out.

    Attributes:
        status: "grows", "settles", "swings" (stays in range without settling) or "unclear".
        exponent: Slope of log level against log distance over the last decades.
        decades: The range that could be used before anything overflowed.
        first: Level at the nearest point.
        last: Level at the farthest usable point.
    """

    status: str
    exponent: float
    decades: float
    first: float
    last: float


def classify(distance: Tensor, values: Tensor, usable: int) -> Growth:
    """Judge the first ``usable`` values of a sequence.

    Args:
        distance: Rising distances (J,), geometric.
        values: Values (J, outputs) there.
        usable: How many of them are finite and come from finite intermediate values.

    Returns:
        The judgement.
    """
    if usable == 0:
        nothing = float("nan")
        return Growth("unclear", nothing, 0.0, nothing, nothing)
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
        # Both ends belong to a decade, so that no step between samples is left out.
        inside = (log_t >= log_t[-1] - window - 1e-6) & (log_t <= log_t[-1] - window + 1 + 1e-6)
        highest.append(float(log_level[inside].max()))
        changes.append(float((values[inside].amax(0) - values[inside].amin(0)).max()))
    late = (highest[3] - highest[1]) / 2
    early = (highest[2] - highest[0]) / 2
    # A swing that happens to rise over the last decades has been as high before; a power has not.
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
    """One status for many rays: one that grows decides, and all must settle for the whole to settle."""
    if "grows" in statuses:
        return "grows"
    if "unclear" in statuses:
        return "unclear"
    return "swings" if "swings" in statuses else "settles"


def steepest(growths: list[Growth]) -> float:
    """The largest exponent, over the sequences that have one."""
    exponents = torch.tensor([growth.exponent for growth in growths], dtype=torch.float64)
    known = exponents[torch.isfinite(exponents)]
    return float(known.max()) if len(known) else float("nan")
