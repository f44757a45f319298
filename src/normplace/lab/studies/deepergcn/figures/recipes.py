"""Scores of the official molhiv recipe and of the recipes for node tasks, compared with published ones."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.studies.deepergcn import molhiv_official, recipes
from normplace.lab.studies.deepergcn.figures.scores import BEST, HERE, PUBLISHED, task_dots
from normplace.lab.studies.deepergcn.published import ANCHORS, MOLHIV_TEST
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

NETWORKS = {"none": "DyResGEN-7, official recipe", "degree": "with a degree scale after the norms"}


def figures(records: Records) -> list[Figure]:
    """Draw the scores of the tasks that have trials."""
    rows: list[dict[str, Any]] = []
    tasks = []
    for task, (mean, deviation) in {"molhiv": MOLHIV_TEST, **ANCHORS}.items():
        if measured := score_rows(_groups(records, task), "test"):
            tasks.append(task)
            published = {"task": task, "network": BEST[task], "source": PUBLISHED}
            rows += [*measured, {**published, "value": mean, "low": mean - deviation, "high": mean + deviation}]
    if not rows:
        return []
    return [
        Figure(
            title="Official recipe and recipes of ours, compared with published scores",
            caption="Test ROC-AUC at the best validation epoch, mean over seeds or splits with its 95% interval; "
            "published numbers with their standard deviation.",
            rows=rows,
            spec=task_dots(rows, tasks),
            alt="One panel per task with the measured and the published ROC-AUC.",
        )
    ]


def _groups(records: Records, task: str) -> list[Group]:
    if task == "molhiv":
        return [
            ({"task": task, "network": name, "source": HERE}, pick(records, molhiv_official.PART.name, scale=scale))
            for scale, name in NETWORKS.items()
        ]
    return [
        (
            {"task": task, "network": recipes.candidate_name(settings), "source": HERE},
            pick(records, recipes.PART.name, data=task, **settings),
        )
        for settings in recipes.ALL_CANDIDATES[task]
    ]
