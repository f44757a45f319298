"""Score by block order and place of dropout."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.studies.deepergcn import depth
from normplace.lab.studies.deepergcn.claims.graphs import GRAPHS
from normplace.lab.studies.deepergcn.dropout import ORDERS, PART
from normplace.lab.studies.deepergcn.figures.scores import score_dots
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure

PLACES = {"branch dropout": depth.PART.name, "stream dropout": PART.name}
"""Places of dropout, and the part with their trials."""


def figures(records: Records) -> list[Figure]:
    """Draw the scores."""
    groups: list[Group] = [
        (
            {"graph": data, "order": order, "dropout": place},
            pick(records, part, data=data, order=order, depth=layers),
        )
        for data in GRAPHS
        for order in ORDERS
        for place, part in PLACES.items()
        for layers in config_values(records, PART.name, "depth", data=data)
    ]
    rows = score_rows(groups, "test")
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    return [
        Figure(
            title="Score by block order and place of dropout",
            caption="Test ROC-AUC at the best validation epoch, mean over seeds with its 95% interval; a dropout "
            "probability of 0.2. The published res+ has branch dropout, the published res stream dropout.",
            rows=rows,
            spec=score_dots("order", ORDERS, "dropout", PLACES, "graph", graphs),
            alt="One panel per graph with the ROC-AUC of both orders with both places of dropout.",
        )
    ]
