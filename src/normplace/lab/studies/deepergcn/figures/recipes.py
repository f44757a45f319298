"""Scores of the official molhiv recipe and of the recipes for node tasks, compared with published ones."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.studies.deepergcn import molhiv_official, recipes
from normplace.lab.studies.deepergcn.figures.scores import HERE, compared_scores
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

NETWORKS = {"none": "DyResGEN-7, official recipe", "degree": "with a degree scale after the norms"}


def figures(records: Records) -> list[Figure]:
    """Draw the scores of the tasks that have trials."""
    return compared_scores(
        lambda task: _groups(records, task),
        title="Official recipe and recipes of ours, compared with published scores",
        caption="Test ROC-AUC at the best validation epoch, mean over seeds or splits with its 95% interval; "
        "published numbers with their standard deviation.",
    )


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
