"""Rows of charts: means over seeds with their 95% confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normplace.lab.trials.intervals import STUDENT
from normplace.lab.trials.results import TrialRecord

Group = tuple[Mapping[str, Any], Sequence[TrialRecord]]


def mean_rows(groups: Iterable[Group], position: str, value: str, *, band: bool = True) -> list[dict[str, Any]]:
    """Compute the mean over seeds of one series against another, with its 95% interval.

    Args:
        groups: For each curve, the columns that identify it, and its records.
        position: Series of the horizontal axis; it is averaged if seeds differ in it.
        value: Series to average; a number that is missing in one seed is left out of the mean.
        band: Whether to add the interval, in columns ``low`` and ``high``.
    """
    rows = []
    for columns, records in groups:
        positions = zip(*(record.series[position] for record in records), strict=True)
        values = zip(*(record.series[value] for record in records), strict=True)
        for xs, ys in zip(positions, values, strict=True):
            x, _, _ = STUDENT([number for number in xs if number is not None])
            known = [number for number in ys if number is not None]
            mean, low, high = STUDENT(known)
            if math.isfinite(mean):
                ends = {"low": low, "high": high} if band and len(known) > 1 else {}
                rows.append({**columns, position: x, value: mean, **ends})
    return rows


def thinned(rows: Iterable[dict[str, Any]], position: str, near: float) -> list[dict[str, Any]]:
    """Keep the rows within ``near`` of zero and those at integer positions, because curves are smooth far from zero."""
    return [row for row in rows if abs(row[position]) <= near or float(row[position]).is_integer()]


def score_rows(groups: Iterable[Group], metric: str) -> list[dict[str, Any]]:
    """Compute the mean over seeds of a metric with its 95% interval, one row per group that has records."""
    rows = []
    for columns, records in groups:
        if numbers := mean_columns(record.metrics.get(metric) for record in records):
            rows.append({**columns, **numbers})
    return rows


def mean_columns(values: Iterable[float | None], name: str = "value") -> dict[str, float]:
    """Compute the mean of the values that are not None, its 95% interval if there are several, and their number.

    Args:
        values: The values.
        name: Column of the mean.

    Examples:
        >>> mean_columns([2.0, None])
        {'value': 2.0, 'n': 1}
    """
    known = [value for value in values if value is not None]
    if not known:
        return {}
    mean, low, high = STUDENT(known)
    ends = {"low": low, "high": high} if len(known) > 1 else {}
    return {name: mean, **ends, "n": len(known)}
