"""Classification scores on a social graph, also during training, and sensitivity to the degree scale."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.postdeg.social import PART, SLOTS
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure
from normplace.models.convolutions import AGGREGATIONS

PANEL = "Tolokers, official splits"


def figures(records: Records) -> list[Figure]:
    """Draw the three figures."""
    groups: list[Group] = [
        ({"aggregation": title, "scale": SLOTS[slot]}, selected)
        for aggregation, title in AGGREGATIONS.items()
        for slot in SLOTS
        if (selected := pick(records, PART.name, aggregation=aggregation, slot=slot))
    ]
    if not groups:
        return []
    degree_scores = [record.metrics["degree_alone"] for _, selected in groups for record in selected]
    degree_scores = [value for value in degree_scores if value is not None]
    return [
        Figure(
            title="Tolokers: ROC-AUC by aggregation and slot of the degree scale",
            caption="Test score at the best validation score; mean over official splits with its 95% interval. The "
            f"degree alone has a ROC-AUC of {sum(degree_scores) / max(len(degree_scores), 1):.3f}.",
            rows=_facet(score_rows(groups, "test")),
            spec=_dots("ROC-AUC"),
            alt="A point and interval for each aggregation and each slot of the scale.",
        ),
        Figure(
            title="Tolokers: test ROC-AUC during training",
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
            alt="Three panels, one per aggregation, with a line and band for each slot of the scale.",
        ),
        Figure(
            title="Tolokers: sensitivity of the output to the degree scale",
            caption="Relative change of the trained network's output per unit of log-degree, which rises at every "
            "other node and falls at the rest; mean over official splits with its 95% interval.",
            rows=_facet(score_rows(groups, "heard")),
            spec=_dots("change of the output per unit of log-degree"),
            alt="A point and interval for each aggregation, with the scale before and after the norm.",
        ),
    ]


def _facet(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"graph": PANEL, **row} for row in rows]


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
        panels=[PANEL],
    )
