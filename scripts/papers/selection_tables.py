"""Tables of the PostDeg page and of the page on node selection: policies, classical methods and constant scores."""

from __future__ import annotations

import json
from pathlib import Path

from normplace._shared.text_table import markdown_table
from normplace.lab.studies.estimates import estimate_text
from normplace.lab.studies.postdeg.claims.extended import mean_gain
from normplace.lab.studies.postdeg.measures import classical_score, score
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.tasks.selection_names import METHODS, methods_of
from papers import committed

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
UNITS = {"influence": "share reached ↑", "dismantling": "R ↓", "independent-set": "share in the set ↑"}
LARGE_GRAPH = {
    "dismantling": ("R", "dismantling: R ↓", ".4f"),
    "influence": ("reached", "influence, 50 seeds: nodes reached ↑", ",.0f"),
    "independent-set": ("size", "independent set: nodes ↑", ",.0f"),
}
"""Number, heading and format of each task in the table of the large graph."""
POLICIES = {
    "policy: attention, constant input, LN": {"slot": "none"},
    "policy: attention, constant input, PostDeg": {},
    "policy: attention, degree input, LN": {"features": "degree", "slot": "none"},
    "policy: attention, degree input, PostDeg": {"features": "degree"},
    "policy: sum, constant input, LN": {"aggregation": "sum", "slot": "none"},
    "policy: sum, constant input, PostDeg": {"aggregation": "sum"},
}


def methods() -> str:
    """Scores of policies and of classical methods on the unseen random graphs."""
    records = committed.records("postdeg", "full")
    rows = [
        [name, *(estimate_text(values, ".3f") if (values := score(task, **cell)(records)) else "" for task in TASKS)]
        for name, cell in POLICIES.items()
    ]
    for name, method in METHODS.items():
        measured = {task: classical_score(task, name)(records) for task in TASKS if name in methods_of(task)}
        if any(measured.values()):
            rows.append(
                [method.title, *(estimate_text(measured[task], ".3f") if measured.get(task) else "" for task in TASKS)]
            )
    return markdown_table(("method", *(f"{title}: {UNITS[task]}" for task, title in TASKS.items())), rows)


def known_degree() -> str:
    """Mean gain of the inverse degree by how much of the degree reaches the head without it."""
    records = committed.records("postdeg", "full")
    edges = (-10.0, 0.2, 0.5, 0.8, 1.0)
    names = ("up to 0.2", "0.2 to 0.5", "0.5 to 0.8", "above 0.8")
    rows = [
        [name, *(estimate_text((100 * mean_gain(task, low, high))(records), "+.1f", unit="%") for task in TASKS)]
        for name, low, high in zip(names, edges[:-1], edges[1:], strict=True)
    ]
    return markdown_table(("R² of the probe", *TASKS.values()), rows, right_from=1)


def constant() -> str:
    """Difference of the constant backbone to random orders on real graphs, before and after."""
    rows = []
    for row in json.loads((RESULTS / "constant_backbone-cpu.json").read_text())["graphs"]:
        cells = [
            f"{100 * number['mean']:+.1f}% [{100 * number['low']:+.1f}, {100 * number['high']:+.1f}]"
            for task in TASKS
            for number in (row["float32"][task], row["float64"][task])
        ]
        rows.append([row["graph"], f"{row['nodes']:,}", *cells])
    headings = [f"{task}, {scoring}" for task in TASKS for scoring in ("float32", "float64")]
    return markdown_table(("graph", "nodes", *headings), rows)


def large_graph() -> str:
    """Quality and time of every method on one large graph."""
    measured: dict[str, dict[str, str]] = {}
    for row in json.loads((RESULTS / "select_nodes-cpu.json").read_text())["rows"]:
        number, _, form = LARGE_GRAPH[row["task"]]
        cell = f"{row[number]:{form}} ({row['seconds']:.2g} s)"
        measured.setdefault(_large_graph_method(row["method"]), {})[row["task"]] = cell
    rows = [[name, *(cells.get(task, "") for task in LARGE_GRAPH)] for name, cells in measured.items()]
    return markdown_table(("method", *(heading for _, heading, _ in LARGE_GRAPH.values())), rows, right_from=1)


def _large_graph_method(name: str) -> str:
    """Name of a method of the record in the table."""
    plain = name.removeprefix("igraph ")
    title = METHODS[plain].title if plain in METHODS else plain
    return title if plain == name else f"{title} of igraph"
