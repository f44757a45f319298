"""The study's figures: score, smoothness and memory against depth, aggregations, and the molecules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.deepergcn import anchors, molhiv
from normplace.lab.studies.deepergcn.claims import GRAPHS
from normplace.lab.studies.deepergcn.depth import ORDERS
from normplace.lab.studies.deepergcn.measures import deepest
from normplace.lab.studies.deepergcn.network import AGGREGATIONS
from normplace.lab.trials.claims import interval, pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure
from normplace.models.depth import MEMORY

HERE, PUBLISHED = "measured here", "published"


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """The figures of every part that has lines of successful trials."""
    done = [line for line in lines if line.status == "ok"]
    return [figure for draw in (_depth, _smoothing, _dropout, _aggregation, _memory, _scores) for figure in draw(done)]


def _mean(columns: dict[str, Any], lines: Sequence[TrialRecord], metric: str) -> list[dict[str, Any]]:
    """One row with the mean over seeds of a metric and its 95% interval; none without lines."""
    values = [value for line in lines if (value := line.metrics.get(metric)) is not None]
    mean, low, high = interval(values)
    edges = {"low": low, "high": high} if len(values) > 1 else {}
    return [{**columns, "value": mean, **edges, "n": len(values)}] if values else []


def _graphs(lines: Sequence[TrialRecord], part: str) -> list[str]:
    return [data for data in GRAPHS if pick(lines, part, data=data)]


def _depth(lines: Sequence[TrialRecord]) -> list[Figure]:
    rows = []
    for data in (graphs := _graphs(lines, "depth")):
        chosen = pick(lines, "depth", data=data)
        for order in ORDERS:
            for depth in sorted({line.config["depth"] for line in chosen}):
                columns = {"graph": data, "order": order, "depth": depth}
                rows += _mean(columns, pick(chosen, "depth", order=order, depth=depth), "test")
    if not rows:
        return []
    spec = curves(
        x={"field": "depth", "title": "layers", "scale": {"type": "log", "base": 2}},
        y={"field": "value", "title": "ROC-AUC", "scale": {"zero": False}},
        series="order",
        order=ORDERS,
        low="low",
        high="high",
        facet="graph",
        panels=graphs,
    )
    return [
        Figure(
            title="Score against depth, by block order",
            caption="Test ROC-AUC at the best validation epoch, the mean over seeds with its 95% interval; the same "
            "dropout, norm, width and training for every order.",
            rows=rows,
            spec=spec,
            alt="One panel per graph with a line of ROC-AUC over the number of layers for each block order.",
        )
    ]


def _smoothing(lines: Sequence[TrialRecord]) -> list[Figure]:
    rows = []
    for data in (graphs := _graphs(lines, "depth")):
        depth = deepest(lines, data)
        for order in ORDERS:
            chosen = pick(lines, "depth", data=data, order=order, depth=depth)
            for layer, values in enumerate(zip(*(line.series["energy"] for line in chosen), strict=True)):
                seen = [value for value in values if value is not None]
                if seen:
                    rows.append({"graph": data, "order": order, "layer": layer, "energy": sum(seen) / len(seen)})
    if not rows:
        return []
    spec = curves(
        x={"field": "layer", "title": "blocks passed"},
        y={"field": "energy", "title": "relative Dirichlet energy", "scale": {"type": "log"}},
        series="order",
        order=ORDERS,
        facet="graph",
        panels=graphs,
    )
    return [
        Figure(
            title="Smoothness of the stream along the deepest trained stacks",
            caption="Dirichlet energy of the normalized Laplacian over the squared norm, mean over seeds, logarithmic; "
            "0 where neighbours are alike. In res+ the stream has not passed a norm.",
            rows=rows,
            spec=spec,
            alt="One panel per graph with a line of Dirichlet energy over the blocks for each block order.",
        )
    ]


def _dropout(lines: Sequence[TrialRecord]) -> list[Figure]:
    rows = []
    for data in (graphs := _graphs(lines, "dropout")):
        for order in ("res+", "res"):
            for dropped in ("branch", "stream"):
                columns = {"graph": data, "order": order, "dropout": f"{dropped} dropout"}
                part = "depth" if dropped == "branch" else "dropout"
                layers = {line.config["depth"] for line in pick(lines, "dropout", data=data)}
                for depth in layers:
                    rows += _mean(columns, pick(lines, part, data=data, order=order, depth=depth), "test")
    if not rows:
        return []
    return [
        Figure(
            title="Score by block order and by what dropout drops",
            caption="Test ROC-AUC at the best validation epoch, the mean over seeds with its 95% interval; a "
            "probability of 0.2. The published res+ has branch dropout, the published res stream dropout.",
            rows=rows,
            spec=_dots("order", ("res+", "res"), "dropout", ("branch dropout", "stream dropout"), "graph", graphs),
            alt="One panel per graph with the ROC-AUC of both orders under both kinds of dropout.",
        )
    ]


def _aggregation(lines: Sequence[TrialRecord]) -> list[Figure]:
    rows = []
    kinds = {False: "without MsgNorm", True: "with MsgNorm"}
    for data in (graphs := _graphs(lines, "aggregation")):
        for name in AGGREGATIONS:
            for msg_norm, kind in kinds.items():
                columns = {"graph": data, "aggregation": name, "messages": kind}
                chosen = pick(lines, "aggregation", data=data, aggregation=name, msg_norm=msg_norm)
                rows += _mean(columns, chosen, "test")
    if not rows:
        return []
    return [
        Figure(
            title="Score by aggregation, with and without MsgNorm",
            caption="Test ROC-AUC at the best validation epoch of res+ stacks, the mean over seeds with its 95% "
            "interval.",
            rows=rows,
            spec=_dots("aggregation", AGGREGATIONS, "messages", kinds.values(), "graph", graphs),
            alt="One panel per graph with the ROC-AUC of every aggregation.",
        )
    ]


def _memory(lines: Sequence[TrialRecord]) -> list[Figure]:
    rows = []
    for memory in MEMORY:
        chosen = pick(lines, "memory", memory=memory)
        for depth in sorted({line.config["depth"] for line in chosen}):
            rows += _mean({"memory": memory, "depth": depth}, pick(chosen, "memory", depth=depth), "peak_mb")
    if not rows:
        return []
    spec = curves(
        x={"field": "depth", "title": "blocks", "scale": {"type": "log", "base": 2}},
        y={"field": "value", "title": "MiB above parameters", "scale": {"type": "log"}},
        series="memory",
        order=MEMORY,
    )
    return [
        Figure(
            title="Peak memory of a training step against depth",
            caption="Above the parameters and their gradients; the three modes compute the same network of two groups "
            "of channels. Both axes logarithmic.",
            rows=rows,
            spec=spec,
            alt="Peak memory over the number of blocks for stored, checkpointed and reversible networks.",
        )
    ]


def _scores(lines: Sequence[TrialRecord]) -> list[Figure]:
    rows: list[dict[str, Any]] = []
    tasks = []
    published = {"molhiv": (molhiv.PUBLISHED_TEST, molhiv.PUBLISHED_DEVIATION), **anchors.PUBLISHED}
    names = {"molhiv": ("softmax learned",), **anchors.CANDIDATES}
    for task, (mean, deviation) in published.items():
        part, fields = ("molhiv", {}) if task == "molhiv" else ("anchors", {"data": task})
        found = []
        for name in names[task]:
            columns = {"task": task, "network": f"res+, {name}", "source": HERE}
            found += _mean(columns, pick(lines, part, aggregation=name, **fields), "test")
        if found:
            tasks.append(task)
            best = {"task": task, "network": _BEST[task], "source": PUBLISHED}
            rows += [*found, {**best, "value": mean, "low": mean - deviation, "high": mean + deviation}]
    if not rows:
        return []
    order = dict.fromkeys(row["network"] for row in rows)
    return [
        Figure(
            title="Scores beside published ones",
            caption="Test ROC-AUC at the best validation epoch: over seeds for molhiv, over the official splits for "
            "the graphs, with the 95% interval of the mean; published numbers with their deviation.",
            rows=rows,
            spec=_dots("network", order, "source", (HERE, PUBLISHED), "task", tasks),
            alt="One panel per task with the ROC-AUC measured here and the published one.",
        )
    ]


_BEST = {"molhiv": "DyResGEN-7", "minesweeper": "tuned GCN, 12 layers", "tolokers": "GAT-sep"}


def _dots(rows: str, order: Any, series: str, sources: Any, facet: str, panels: Sequence[str]) -> dict[str, Any]:
    return dots(
        x={"field": "value", "title": "ROC-AUC"},
        rows=rows,
        order=list(order),
        low="low",
        high="high",
        series=series,
        sources=list(sources),
        facet=facet,
        panels=panels,
    )
