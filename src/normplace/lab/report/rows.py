"""From the series of several seeds to the rows of a chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normplace.lab.trials.claims import interval
from normplace.lab.trials.results import TrialRecord

Group = tuple[Mapping[str, Any], Sequence[TrialRecord]]


def mean_rows(groups: Iterable[Group], position: str, value: str, *, band: bool = True) -> list[dict[str, Any]]:
    """Mean over seeds of one series against another, with its 95% interval.

    Args:
        groups: What tells a curve from the others, as columns, and the lines it is the mean of.
        position: The series along the horizontal axis; where seeds differ in it, it is averaged too.
        value: The series to average; a number that is missing in one seed is left out of the mean.
        band: Whether to give the interval, in columns ``low`` and ``high``.
    """
    rows = []
    for columns, lines in groups:
        places = zip(*(line.series[position] for line in lines), strict=True)
        heights = zip(*(line.series[value] for line in lines), strict=True)
        for place, height in zip(places, heights, strict=True):
            x, _, _ = interval([v for v in place if v is not None])
            seen = [v for v in height if v is not None]
            mean, low, high = interval(seen)
            if not math.isfinite(mean):
                continue
            edges = {"low": low, "high": high} if band and len(seen) > 1 else {}
            rows.append({**columns, position: x, value: mean, **edges})
    return rows


def thinned(rows: Iterable[dict[str, Any]], position: str, near: float) -> list[dict[str, Any]]:
    """All rows within ``near`` of zero and those at whole positions beyond, where curves are smooth."""
    return [row for row in rows if abs(row[position]) <= near or float(row[position]).is_integer()]


def score_rows(groups: Iterable[Group], metric: str) -> list[dict[str, Any]]:
    """Mean over seeds of a metric with its 95% interval, one row per group that has records."""
    rows = []
    for columns, records in groups:
        if numbers := mean_columns(record.metrics.get(metric) for record in records):
            rows.append({**columns, **numbers})
    return rows


def mean_columns(values: Iterable[float | None]) -> dict[str, float]:
    """Mean of the values that are not None, its 95% interval if there are several, and their number; empty without any.

    Example:
        >>> mean_columns([2.0, None])
        {'value': 2.0, 'n': 1}
    """
    known = [value for value in values if value is not None]
    if not known:
        return {}
    mean, low, high = interval(known)
    ends = {"low": low, "high": high} if len(known) > 1 else {}
    return {"value": mean, **ends, "n": len(known)}
