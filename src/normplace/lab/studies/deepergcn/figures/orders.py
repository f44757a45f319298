"""Train and test score, gradients and smoothness by order and depth, and scores by aggregation."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.deepergcn.figures.depth import smoothness_figure
from normplace.lab.studies.deepergcn.figures.scores import score_dots
from normplace.lab.studies.deepergcn.orders import AGGREGATIONS, DEEP, LEARNED, ORDERS, OTHER, PART
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure

GRAPHS = ("grid-mines", "minesweeper", "tolokers", *OTHER)
SCORES = {"train": "last_train", "test": "last_test"}
STEPS = {"first step": "gradient_start", "last step": "gradient_end"}
LAYERS_DRAWN = 100
"""Number of layers from which on not every one is drawn, so that pictures stay small."""


def figures(records: Records) -> list[Figure]:
    """Draw the figures of the graphs that have trials."""
    graphs = [data for data in GRAPHS if pick(records, PART.name, data=data, aggregation=LEARNED)]
    return [_scores(records, graphs), _gradients(records, graphs), _smoothness(records, graphs), _grid(records, graphs)]


def _scores(records: Records, graphs: list[str]) -> Figure:
    rows: list[dict[str, Any]] = []
    for side, metric in SCORES.items():
        groups: list[Group] = [
            (
                {"panel": f"{data}, {side}", "order": order, "depth": depth},
                pick(records, PART.name, data=data, order=order, depth=depth, aggregation=LEARNED),
            )
            for data in graphs
            for order in ORDERS
            for depth in config_values(records, PART.name, "depth", data=data, aggregation=LEARNED)
        ]
        rows += score_rows(groups, metric)
    return Figure(
        title="Train and test score against depth",
        caption="Scores after the last epoch, softmax aggregation with learned temperature, mean over splits with its "
        "95% interval: ROC-AUC, or accuracy on graphs with more than two classes. A network over-fits if its train "
        "score is kept and its test score falls; if both fall, it fails to fit.",
        rows=rows,
        spec=curves(
            x={"field": "depth", "title": "layers", "scale": {"type": "log", "base": 2}},
            y={"field": "value", "title": "score", "scale": {"zero": False}},
            series="order",
            order=ORDERS,
            band=True,
            facet="panel",
            panels=[f"{data}, {side}" for data in graphs for side in SCORES],
            columns=2,
        ),
        alt="Two panels per graph, train and test score against the number of layers for each block order.",
    )


def _deepest(records: Records, graphs: list[str]) -> list[Group]:
    """The records of the deepest stack of each order."""
    groups: list[Group] = []
    for data in graphs:
        for order in ORDERS:
            fields = {"data": data, "order": order, "aggregation": LEARNED}
            if depths := config_values(records, PART.name, "depth", **fields):
                groups.append(({"graph": data, "order": order}, pick(records, PART.name, depth=depths[-1], **fields)))
    return groups


def _gradients(records: Records, graphs: list[str]) -> Figure:
    rows: list[dict[str, Any]] = []
    for step, series in STEPS.items():
        for columns, selected in _deepest(records, graphs):
            panel = {"panel": f"{columns['graph']}, {step}", "order": columns["order"]}
            by_layer = list(zip(*(record.series[series] for record in selected), strict=True))
            step_size = 1 + len(by_layer) // LAYERS_DRAWN
            for layer, norms in list(enumerate(by_layer, start=1))[::step_size]:
                if known := [norm for norm in norms if norm]:
                    rows.append({**panel, "layer": layer, "gradient": sum(known) / len(known)})
    return Figure(
        title="Gradient of every convolution in the deepest stacks",
        caption="Norm of the gradient of the weights, mean over splits, logarithmic; every second layer of stacks of "
        "112. Gradients vanish if the curve falls towards the first layers.",
        rows=rows,
        spec=curves(
            x={"field": "layer", "title": "layer"},
            y={"field": "gradient", "title": "gradient norm", "scale": {"type": "log"}},
            series="order",
            order=ORDERS,
            facet="panel",
            panels=[f"{data}, {step}" for data in graphs for step in STEPS],
            columns=2,
        ),
        alt="Two panels per graph, the gradient norm against the layer at the first and the last step.",
    )


def _smoothness(records: Records, graphs: list[str]) -> Figure:
    rows = mean_rows(_deepest(records, graphs), "layer", "energy", band=False)
    return smoothness_figure(
        [row for row in rows if row["energy"] > 0],
        graphs,
        ORDERS,
        title="Smoothness of the stream along the deepest stacks, all orders",
        caption="Dirichlet energy of the normalized Laplacian over the squared norm, mean over splits, logarithmic; 0 "
        "if neighbors are equal.",
    )


def _grid(records: Records, graphs: list[str]) -> Figure:
    groups: list[Group] = []
    panels = []
    for data in graphs:
        depths = config_values(records, PART.name, "depth", data=data, order="res+", aggregation="softmax sum")
        if not depths:
            continue  # only some of the aggregations
        depth = DEEP if DEEP in depths else depths[-1]
        panels.append(f"{data}, {depth} layers")
        groups += [
            (
                {"panel": panels[-1], "aggregation": name, "order": order},
                pick(records, PART.name, data=data, order=order, depth=depth, aggregation=name),
            )
            for order in ORDERS
            for name in AGGREGATIONS
        ]
    return Figure(
        title="Score by aggregation and block order",
        caption="Test ROC-AUC at the best validation epoch, mean over splits with its 95% interval.",
        rows=score_rows(groups, "test"),
        spec=score_dots("aggregation", AGGREGATIONS, "order", ORDERS, "panel", panels),
        alt="One panel per graph with the ROC-AUC of every aggregation in every block order.",
    )
