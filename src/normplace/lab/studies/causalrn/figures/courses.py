"""Accuracy along the training: against steps, and against seconds where they were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.report.specs import curves
from normplace.lab.trials.per_seed import mean
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

POINTS = 40
"""Points of a curve."""
AXES = {"step": "steps", "seconds": "seconds"}


def course_figures(networks: Mapping[str, Sequence[TrialRecord]], title: str, caption: str) -> list[Figure]:
    """Draw the mean character accuracy of every network along the training."""
    shown = {name: records for name, records in networks.items() if records}
    panels = [axis for axis in AXES if any(axis in record.series for records in shown.values() for record in records)]
    rows = [
        {"axis": AXES[axis], "network": name, **row}
        for axis in panels
        for name, records in shown.items()
        if all(axis in record.series for record in records)
        for row in mean_course(records, axis)
    ]
    spec = curves(
        x={"field": "position", "title": "training"},
        y={"field": "character", "title": "character accuracy", "scale": {"domain": [0, 1]}},
        series="network",
        order=list(shown),
        facet="axis",
        panels=[AXES[axis] for axis in panels],
    )
    return [
        Figure(
            title=title,
            caption=f"{caption} Character accuracy on new strings, mean over seeds. A seed that stopped because every "
            "string was correct keeps its last value. Seconds are those of training on a GPU, without evaluations.",
            rows=rows,
            spec={**spec, "resolve": {"scale": {"x": "independent"}}},
            alt="Character accuracy against training steps and seconds, one line for each network.",
        )
    ]


def mean_course(records: Sequence[TrialRecord], axis: str) -> list[dict[str, Any]]:
    """The mean character accuracy over seeds at evenly spaced positions up to the last of all seeds."""
    courses = [
        [
            (x, y)
            for x, y in zip(record.series[axis], record.series["character"], strict=True)
            if x is not None and y is not None
        ]
        for record in records
    ]
    last = max((course[-1][0] for course in courses if course), default=0.0)
    rows = []
    for number in range(POINTS + 1):
        position = last * number / POINTS
        reached = [next((y for x, y in reversed(course) if x <= position), 0.0) for course in courses]
        rows.append({"position": round(position, 4), "character": mean(reached)})
    return rows
