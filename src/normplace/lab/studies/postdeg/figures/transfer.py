"""Gain of PostDeg on real graphs, by the input of the policy."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.rows import mean_columns
from normplace.lab.report.specs import dots
from normplace.lab.studies.postdeg.claims.transfer import real_gain
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.studies.postdeg.transfer import INPUTS, POLICY
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure

GAINS = {
    "PostDeg over LayerNorm alone": (True, POLICY),
    "PostDeg over the order of degrees": (True, "degree"),
    "LayerNorm alone over the order of degrees": (False, "degree"),
}
"""Whether the policy has PostDeg, and what it is compared with."""


def figures(records: Records) -> list[Figure]:
    """Draw one panel per task."""
    rows: list[dict[str, Any]] = []
    for task, title in TASKS.items():
        for features in INPUTS:
            for name, (postdeg, reference) in GAINS.items():
                if gain := (100 * real_gain(task, features, postdeg, reference))(records):
                    columns = {"task": title, "input": features, "gain of": name}
                    rows.append({**columns, **mean_columns(gain.values(), "gain")})
    return [
        Figure(
            title="Real graphs: gain of PostDeg by input",
            caption="Percent, median over the graphs, mean over paired seeds with its 95% interval. Softmax attention, "
            "nodes ranked once. With a constant input, LayerNorm alone orders nodes at random.",
            rows=rows,
            spec=dots(
                x={"field": "gain", "title": "gain, %"},
                rows="input",
                order=INPUTS,
                series="gain of",
                sources=list(GAINS),
                facet="task",
                panels=list(TASKS.values()),
            ),
            alt="Three panels, one per task, with the gains and intervals for every input.",
        )
    ]
