"""How well the nodes of a social graph are classified, along training too, and how far the scale is heard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.postdeg.selection import AGGREGATIONS
from normplace.lab.studies.postdeg.social import PART, SLOTS
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

_PANEL = "Tolokers, official splits"


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """Three figures, from the lines of successful trials."""
    groups: list[Group] = [
        ({"aggregation": title, "scale": SLOTS[slot]}, found)
        for aggregation, title in AGGREGATIONS.items()
        for slot in SLOTS
        if (found := pick(lines, PART.name, aggregation=aggregation, slot=slot))
    ]
    if not groups:
        return []
    alone = [line.metrics["degree_alone"] for _, found in groups for line in found]
    alone = [value for value in alone if value is not None]
    return [
        Figure(
            title="Tolokers: ROC-AUC by aggregation and place of the degree scale",
            caption="Test nodes, at the look where the validation nodes are judged best; mean over official splits "
            f"with its 95% interval. Degree alone, as a score, has {sum(alone) / max(len(alone), 1):.3f}.",
            rows=_facet(score_rows(groups, "test")),
            spec=_dots("ROC-AUC"),
            alt="A point and interval for each aggregation and each place of the scale.",
        ),
        Figure(
            title="Tolokers: ROC-AUC of the test nodes along training",
            caption="Mean over official splits with its 95% interval.",
            rows=mean_rows(groups, "epoch", "test"),
            spec=curves(
                x={"field": "epoch", "title": "epoch"},
                y={"field": "test", "title": "ROC-AUC", "scale": {"zero": False}},
                series="scale",
                order=list(SLOTS.values()),
                low="low",
                high="high",
                facet="aggregation",
                panels=list(AGGREGATIONS.values()),
                width=250,
            ),
            alt="Three panels, one per aggregation, with a line and band for each place of the scale.",
        ),
        Figure(
            title="Tolokers: how far the degree scale is heard",
            caption="Relative change of the trained network's output per unit of the scale's log-degree, which rises "
            "at half of the nodes and falls at the others; mean over official splits with its 95% interval.",
            rows=_facet(score_rows(groups, "heard")),
            spec=_dots("change of the output per unit of log-degree"),
            alt="A point and interval for each aggregation, with the scale before and after the norm.",
        ),
    ]


def _facet(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"graph": _PANEL, **row} for row in rows]


def _dots(title: str) -> dict[str, Any]:
    return dots(
        x={"field": "value", "title": title},
        rows="aggregation",
        order=list(AGGREGATIONS.values()),
        low="low",
        high="high",
        series="scale",
        sources=list(SLOTS.values()),
        facet="graph",
        panels=[_PANEL],
    )
