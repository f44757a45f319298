"""Tables of every method on every real graph."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.specs import cells
from normplace.lab.studies.postdeg.topologies import ADAPTIVE, CLASSICAL, GRAPHS, PART, titles
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

MEAN = "mean"


def figures(records: Records) -> list[Figure]:
    """Draw one table per task, relative to its classical reference."""
    return [
        _table(records, "dismantling", "AUC", "corehd", "low", "Dismantling real graphs: area under the curve"),
        _table(records, "influence", "spread", "ris", "high", "Influence on real graphs: nodes reached from 50 seeds"),
        _table(records, "independent-set", "set", "min-degree", "high", "Independent sets of real graphs"),
    ]


def _value(records: Records, task: str, measure: str, method: str, graph: str) -> float | None:
    """Mean over seeds."""
    plain, suffix = method.removesuffix(ADAPTIVE), ADAPTIVE if method.endswith(ADAPTIVE) else ""
    values = [
        value
        for record in pick(records, PART.name, task=task, method=plain)
        if (value := record.metrics.get(f"{measure}/{graph}{suffix}")) is not None
    ]
    return sum(values) / len(values) if values else None


def _table(records: Records, task: str, measure: str, reference: str, good: str, title: str) -> Figure:
    rows: list[dict[str, Any]] = []
    for method, name in titles().items():
        ratios = []
        for graph in GRAPHS:
            value = _value(records, task, measure, method, graph)
            base = _value(records, task, measure, reference, graph)
            if value is None or not base:
                continue
            ratios.append(value / base)
            rows.append({"method": name, "graph": graph, "ratio": ratios[-1], measure: value})
        if ratios:
            rows.append({"method": name, "graph": MEAN, "ratio": sum(ratios) / len(ratios)})
    for row in rows:
        row["text"] = f"{row['ratio']:.2f}"
    return Figure(
        title=title,
        caption=f"Relative to {CLASSICAL[reference]}, whose row is 1; a {good} ratio is better. "
        "Policies, by aggregation, input and norm, were trained on random graphs of up to 300 nodes; mean over "
        "seeds. They rank the nodes once or, if adaptive, again after every removal step. Betweenness is recomputed "
        "after every removal on graphs of up to 3,000 nodes, and estimated once from 500 sources on larger ones. "
        "Collective influence has radius 2 on graphs of up to 10,000 nodes, and radius 1 on larger ones.",
        rows=rows,
        spec=cells(
            x="graph",
            columns=[*(graph for graph in GRAPHS if any(row["graph"] == graph for row in rows)), MEAN],
            y="method",
            rows=list(dict.fromkeys(row["method"] for row in rows)),
            value="ratio",
            text="text",
            title=f"over {CLASSICAL[reference]}",
            middle=1.0,
            reach=0.3,
            good=good,
            step=56,
        ),
        alt=f"A table of colored cells: every method on every graph, relative to {CLASSICAL[reference]}.",
    )
