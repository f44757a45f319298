"""Scores compared with published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import dots
from normplace.lab.studies.deepergcn import anchors, molhiv
from normplace.lab.studies.deepergcn.published import ANCHORS, MOLHIV_TEST
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

HERE, PUBLISHED = "measured here", "published"
BEST = {"molhiv": "DyResGEN-7", "minesweeper": "tuned GCN, 12 layers", "tolokers": "GAT-sep"}
"""Networks of the published scores."""


def figures(records: Records) -> list[Figure]:
    """Draw the scores on molhiv and on the official splits."""
    return compared_scores(
        lambda task: _groups(records, task),
        title="Scores compared with published ones",
        caption="Test ROC-AUC at the best validation epoch: mean over seeds for molhiv, over the official "
        "splits for the graphs, with its 95% interval; published numbers with their standard deviation.",
    )


def _groups(records: Records, task: str) -> list[Group]:
    is_molhiv = task == "molhiv"
    part, fields = (molhiv.PART, {}) if is_molhiv else (anchors.PART, {"data": task})
    return [
        (
            {"task": task, "network": f"res+, {name}", "source": HERE},
            pick(records, part.name, aggregation=name, **fields),
        )
        for name in ((molhiv.LEARNED_SOFTMAX,) if is_molhiv else anchors.CANDIDATES[task])
    ]


def compared_scores(groups: Callable[[str], list[Group]], **texts: Any) -> list[Figure]:
    """Draw the measured and the published score of every task that has trials."""
    rows: list[dict[str, Any]] = []
    tasks = []
    for task, (mean, deviation) in {"molhiv": MOLHIV_TEST, **ANCHORS}.items():
        if measured := score_rows(groups(task), "test"):
            tasks.append(task)
            published = {"task": task, "network": BEST[task], "source": PUBLISHED}
            rows += [*measured, {**published, "value": mean, "low": mean - deviation, "high": mean + deviation}]
    alt = "One panel per task with the measured and the published ROC-AUC."
    return [Figure(rows=rows, spec=_task_dots(rows, tasks), alt=alt, **texts)]


def _task_dots(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, Any]:
    """Measured and published scores, with a panel of its own networks and range for each task."""
    networks = dict.fromkeys(row["network"] for row in rows)
    spec = score_dots("network", networks, "source", (HERE, PUBLISHED), "task", tasks)
    return {**spec, "columns": 1, "resolve": {"scale": {"x": "independent", "y": "independent"}}}


def score_dots(
    rows: str, order: Iterable[str], series: str, sources: Iterable[str], facet: str, panels: Sequence[str]
) -> dict[str, Any]:
    """A point with its interval for each ROC-AUC."""
    return dots(
        x={"field": "value", "title": "ROC-AUC"},
        rows=rows,
        order=list(order),
        series=series,
        sources=list(sources),
        facet=facet,
        panels=panels,
    )
