"""Rows of charts: means over seeds with their 95% confidence intervals, or with the range of the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from normplace.lab.trials.intervals import STUDENT
from normplace.lab.trials.results import TrialRecord

Group = tuple[Mapping[str, Any], Sequence[TrialRecord]]
Spread = Callable[[Sequence[float]], tuple[float, float, float]]
"""From one value per seed to the mean and both ends of what is drawn around it."""


def seed_range(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, the least and the greatest value: for numbers of which some seeds are near 0 and others near 1.

    Student's interval of such a mean has no meaning, and its ends may lie outside the possible values.

    Examples:
        >>> seed_range([0.0, 1.0])
        (0.5, 0.0, 1.0)
    """
    return fmean(values), min(values), max(values)


def mean_rows(
    groups: Iterable[Group], position: str, value: str, *, band: bool = True, spread: Spread = STUDENT
) -> list[dict[str, Any]]:
    """Compute the mean over seeds of one series against another, with its 95% interval.

    Args:
        groups: For each curve, the columns that identify it, and its records.
        position: Series of the horizontal axis; it is averaged if seeds differ in it.
        value: Series to average; a number that is missing in one seed is left out of the mean.
        band: Whether to add the interval, in columns ``low`` and ``high``.
        spread: What to add instead of the interval, such as :func:`seed_range`.
    """
    rows = []
    for columns, records in groups:
        positions = zip(*(record.series[position] for record in records), strict=True)
        values = zip(*(record.series[value] for record in records), strict=True)
        for xs, ys in zip(positions, values, strict=True):
            x = _mean([number for number in xs if number is not None])
            if (known := [number for number in ys if number is not None]) and all(map(math.isfinite, known)):
                mean, low, high = spread(known)
                ends = {"low": low, "high": high} if band and len(known) > 1 else {}
                rows.append({**columns, position: x, value: mean, **ends})
    return rows


def _mean(values: list[float]) -> float:
    return STUDENT.estimate(values) if values and all(map(math.isfinite, values)) else math.nan


def thinned(rows: Iterable[dict[str, Any]], position: str, near: float) -> list[dict[str, Any]]:
    """Keep the rows within ``near`` of zero and those at integer positions, because curves are smooth far from zero."""
    return [row for row in rows if abs(row[position]) <= near or float(row[position]).is_integer()]


def score_rows(groups: Iterable[Group], metric: str, spread: Spread = STUDENT) -> list[dict[str, Any]]:
    """Compute the mean over seeds of a metric with its 95% interval, one row per group that has records."""
    rows = []
    for columns, records in groups:
        if numbers := mean_columns((record.metrics.get(metric) for record in records), spread=spread):
            rows.append({**columns, **numbers})
    return rows


def mean_columns(values: Iterable[float | None], name: str = "value", spread: Spread = STUDENT) -> dict[str, float]:
    """Compute the mean of the values that are not None, its 95% interval if there are several, and their number.

    Examples:
        >>> mean_columns([2.0, None])
        {'value': 2.0, 'n': 1}
    """
    known = [value for value in values if value is not None]
    if not known:
        return {}
    mean, low, high = spread(known)
    ends = {"low": low, "high": high} if len(known) > 1 else {}
    return {name: mean, **ends, "n": len(known)}
