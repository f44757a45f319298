"""A row of numbers as one word of bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "!"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """The values as bars, from zero to the largest of them; the largest of each group if there are more than ``width``.

    Args:
        values: Numbers of at least zero; one that is not finite is an exclamation mark.
        width: Largest number of bars.

    Examples:
        >>> sparkline([0.0, 1.0, 2.0, 4.0, 8.0])
        '▁▂▃▅█'
        >>> sparkline([3.0, 3.0])
        '██'
    """
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    groups = [max(values[first:last], key=_order) for first, last in pairwise(edges)]
    largest = max((value for value in groups if math.isfinite(value)), default=0.0)
    return "".join(_bar(value, largest) for value in groups)


def _order(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _bar(value: float, largest: float) -> str:
    if not math.isfinite(value):
        return NOT_FINITE
    return BARS[round(value / largest * (len(BARS) - 1))] if largest > 0 else BARS[0]
