"""Accuracy of look-up, within and beyond the trained lengths."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows, seed_range
from normplace.lab.report.specs import curves
from normplace.lab.studies.causalrn.lookup import PART, TASKS
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw string accuracy by length, for both tasks."""
    groups: list[Group] = [
        ({"task": title, "network": TITLES[network]}, selected)
        for task, title in TASKS.items()
        for network in NETWORKS
        if (selected := pick(records, PART.name, task=task, network=network))
    ]
    if not groups:
        return []
    longest = groups[0][1][0].config["longest"]
    rows = [{"accuracy": row.pop("string"), **row} for row in mean_rows(groups, "length", "string", spread=seed_range)]
    return [
        Figure(
            title="Look-up of the characters after an n-gram",
            caption="Share of correct answers under teacher forcing, after training on packed strings of up to "
            f"{longest} characters (dashed line), at equal parameter counts. Mean and range over seeds.",
            rows=rows,
            spec=curves(
                x={"field": "length", "title": "characters", "scale": {"type": "log", "nice": False}},
                y={"field": "accuracy", "title": "string accuracy", "scale": {"domain": [0, 1]}},
                series="network",
                order=[TITLES[network] for network in NETWORKS],
                band=True,
                facet="task",
                panels=list(TASKS.values()),
                rules=(longest,),
            ),
            alt="Two panels, n-gram first and n-gram last: string accuracy against the length of strings, one line for "
            "each network.",
        )
    ]
