"""Classification scores on social graphs, also during training, and sensitivity to the degree scale."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.postdeg.social import FEATURES, INPUTS, PART, SLOTS, TOLOKERS, TWITCH, recorded_input
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure
from normplace.models.convolutions import AGGREGATIONS

PANEL = "Tolokers, official splits"


def figures(records: Records) -> list[Figure]:
    """Draw three figures of Tolokers and one of Twitch."""
    return [*_tolokers(records), *_twitch(records)]


def _groups(records: Records, graph: str, inputs: str = FEATURES) -> list[Group]:
    cells = {"graph": graph, **recorded_input(inputs)}
    return [
        ({"aggregation": title, "scale": SLOTS[slot]}, selected)
        for aggregation, title in AGGREGATIONS.items()
        for slot in SLOTS
        if (selected := pick(records, PART.name, aggregation=aggregation, slot=slot, **cells))
    ]


def _degree_alone(groups: list[Group]) -> float:
    """Mean ROC-AUC of the degree."""
    values = [record.metrics["degree_alone"] for _, selected in groups for record in selected]
    known = [value for value in values if value is not None]
    return sum(known) / max(len(known), 1)


def _twitch(records: Records) -> list[Figure]:
    panels = {
        f"{graph}, {title}": groups
        for graph in TWITCH
        for inputs, title in INPUTS.items()
        if (groups := _groups(records, graph, inputs))
    }
    if not panels:
        return []
    alone = ", ".join(f"{_degree_alone(_groups(records, graph)):.3f} on {graph}" for graph in TWITCH)
    return [
        Figure(
            title="Twitch: ROC-AUC by aggregation and slot of the degree scale",
            caption="Which streamers have more views than the median? Test score at the best validation score; mean "
            f"over splits with its 95% interval. The degree alone has a ROC-AUC of {alone}.",
            rows=[{"graph": panel, **row} for panel, groups in panels.items() for row in score_rows(groups, "test")],
            spec=_dots("ROC-AUC", list(panels)),
            alt="One panel per graph and input, with a point and interval for each aggregation and slot of the scale.",
        )
    ]


def _tolokers(records: Records) -> list[Figure]:
    groups = _groups(records, TOLOKERS)
    if not groups:
        return []
    return [
        Figure(
            title="Tolokers: ROC-AUC by aggregation and slot of the degree scale",
            caption="Test score at the best validation score; mean over official splits with its 95% interval. The "
            f"degree alone has a ROC-AUC of {_degree_alone(groups):.3f}.",
            rows=_facet(score_rows(groups, "test")),
            spec=_dots("ROC-AUC", [PANEL]),
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
                band=True,
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
            spec=_dots("change of the output per unit of log-degree", [PANEL]),
            alt="A point and interval for each aggregation, with the scale before and after the norm.",
        ),
    ]


def _facet(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"graph": PANEL, **row} for row in rows]


def _dots(title: str, panels: list[str]) -> dict[str, Any]:
    return dots(
        x={"field": "value", "title": title},
        rows="aggregation",
        order=list(AGGREGATIONS.values()),
        series="scale",
        sources=list(SLOTS.values()),
        facet="graph",
        panels=panels,
    )
