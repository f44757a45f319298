"""Score by aggregation."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.studies.deepergcn.aggregation import PART
from normplace.lab.studies.deepergcn.claims.graphs import GRAPHS
from normplace.lab.studies.deepergcn.figures.scores import score_dots
from normplace.lab.studies.deepergcn.networks import AGGREGATIONS
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

MSG_NORMS = {"without MsgNorm": False, "with MsgNorm": True}


def figures(records: Records) -> list[Figure]:
    """Draw the scores."""
    groups: list[Group] = [
        (
            {"graph": data, "aggregation": name, "messages": title},
            pick(records, PART.name, data=data, aggregation=name, msg_norm=msg_norm),
        )
        for data in GRAPHS
        for name in AGGREGATIONS
        for title, msg_norm in MSG_NORMS.items()
    ]
    rows = score_rows(groups, "test")
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    return [
        Figure(
            title="Score by aggregation, with and without MsgNorm",
            caption="Test ROC-AUC of res+ stacks at the best validation epoch, mean over seeds with its 95% interval.",
            rows=rows,
            spec=score_dots("aggregation", AGGREGATIONS, "messages", MSG_NORMS, "graph", graphs),
            alt="One panel per graph with the ROC-AUC of every aggregation.",
        )
    ]
