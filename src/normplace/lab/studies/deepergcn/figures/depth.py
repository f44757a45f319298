"""Score and smoothness against depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.deepergcn.claims.graphs import GRAPHS
from normplace.lab.studies.deepergcn.depth import ORDERS, PART
from normplace.lab.studies.deepergcn.measures import deepest
from normplace.lab.trials.per_seed import Records, config_values, mean, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the score against depth, and the smoothness along the deepest stacks."""
    graphs = [data for data in GRAPHS if pick(records, PART.name, data=data)]
    return [_score(records, graphs), _smoothness(records, graphs)]


def _score(records: Records, graphs: list[str]) -> Figure:
    groups: list[Group] = [
        (
            {"graph": data, "order": order, "depth": depth},
            pick(records, PART.name, data=data, order=order, depth=depth),
        )
        for data in graphs
        for order in ORDERS
        for depth in config_values(records, PART.name, "depth", data=data)
    ]
    return Figure(
        title="Score against depth, by block order",
        caption="Test ROC-AUC at the best validation epoch, mean over seeds with its 95% interval; all orders have the "
        "same dropout, norm, width and training.",
        rows=score_rows(groups, "test"),
        spec=curves(
            x={"field": "depth", "title": "layers", "scale": {"type": "log", "base": 2}},
            y={"field": "value", "title": "ROC-AUC", "scale": {"zero": False}},
            series="order",
            order=ORDERS,
            band=True,
            facet="graph",
            panels=graphs,
        ),
        alt="One panel per graph with a line of ROC-AUC against the number of layers for each block order.",
    )


def _smoothness(records: Records, graphs: list[str]) -> Figure:
    rows = []
    for data in graphs:
        depth = deepest(records, data)
        for order in ORDERS:
            selected = pick(records, PART.name, data=data, order=order, depth=depth)
            for layer, values in enumerate(zip(*(record.series["energy"] for record in selected), strict=True)):
                if known := [value for value in values if value is not None]:
                    rows.append({"graph": data, "order": order, "layer": layer, "energy": mean(known)})
    return smoothness_figure(
        rows,
        graphs,
        ORDERS,
        title="Smoothness of the stream along the deepest trained stacks",
        caption="Dirichlet energy of the normalized Laplacian over the squared norm, mean over seeds, logarithmic; "
        "0 if neighbors are equal. In res+ the stream has not passed a norm.",
    )


def smoothness_figure(rows: list[dict[str, Any]], graphs: Sequence[str], orders: Sequence[str], **texts: Any) -> Figure:
    """Draw the Dirichlet energy after every block, with a panel for each graph and a line for each block order."""
    return Figure(
        rows=rows,
        spec=curves(
            x={"field": "layer", "title": "blocks passed"},
            y={"field": "energy", "title": "relative Dirichlet energy", "scale": {"type": "log"}},
            series="order",
            order=orders,
            facet="graph",
            panels=graphs,
        ),
        alt="One panel per graph with a line of Dirichlet energy against the blocks for each block order.",
        **texts,
    )
