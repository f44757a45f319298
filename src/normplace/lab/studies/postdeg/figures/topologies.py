"""Every method on every real graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.specs import cells
from normplace.lab.studies.postdeg.topologies import ADAPTIVE, CLASSICAL, GRAPHS, PART, titles
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

MEAN = "mean"


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """One table per task, relative to its classical reference."""
    found = [
        _table(lines, "dismantling", "AUC", "corehd", "low", "Dismantling nine real graphs: area under the curve"),
        _table(lines, "influence", "spread", "ris", "high", "Influence on nine real graphs: nodes reached by 50 seeds"),
    ]
    return [figure for figure in found if figure is not None]


def _value(lines: Sequence[TrialRecord], task: str, measure: str, method: str, graph: str) -> float | None:
    """The mean over seeds."""
    plain, suffix = method.removesuffix(ADAPTIVE), ADAPTIVE if method.endswith(ADAPTIVE) else ""
    found = [
        value
        for line in pick(lines, PART.name, task=task, method=plain)
        if (value := line.metrics.get(f"{measure}/{graph}{suffix}")) is not None
    ]
    return sum(found) / len(found) if found else None


def _table(
    lines: Sequence[TrialRecord], task: str, measure: str, reference: str, good: str, title: str
) -> Figure | None:
    rows: list[dict[str, Any]] = []
    for method, name in titles().items():
        ratios = []
        for graph in GRAPHS:
            value = _value(lines, task, measure, method, graph)
            base = _value(lines, task, measure, reference, graph)
            if value is None or not base:
                continue
            ratios.append(value / base)
            rows.append({"method": name, "graph": graph, "ratio": ratios[-1], measure: value})
        if ratios:
            rows.append({"method": name, "graph": MEAN, "ratio": sum(ratios) / len(ratios)})
    if not rows:
        return None
    for row in rows:
        row["text"] = f"{row['ratio']:.2f}"
    return Figure(
        title=title,
        caption=f"Relative to {CLASSICAL[reference]}, whose row is 1; {'less' if good == 'low' else 'more'} is better. "
        "Policies, by aggregation, input and norm, were trained on random graphs of up to 300 nodes, mean over three "
        "seeds; they order once, or, adaptive, score what is left again and again. Betweenness is recomputed after "
        "every removal on graphs of up to 3,000 nodes, and taken from 500 sources once on larger ones; collective "
        "influence looks two steps far on graphs of up to 10,000 nodes, and one on larger ones.",
        rows=rows,
        spec=cells(
            x="graph",
            columns=[*GRAPHS, MEAN],
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
        alt=f"A table of coloured cells: every method on every graph, relative to {CLASSICAL[reference]}.",
    )
