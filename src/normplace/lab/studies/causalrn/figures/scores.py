"""A point with its interval for each network."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import dots
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure


def score_figures(records: Records, part: str, field: str, metric: str, axis: str, **texts: Any) -> list[Figure]:
    """Draw a metric of every network, with one panel for each value of a configuration field.

    Args:
        records: Records of successful trials.
        part: Name of the part.
        field: The configuration field.
        metric: Name of the metric.
        axis: Title of the axis.
        **texts: Title and caption of the figure.
    """
    panels = {value: f"{value} {field}" for value in config_values(records, part, field)}
    groups: list[Group] = [
        ({"panel": panel, "network": TITLES[network], "source": "measured"}, selected)
        for value, panel in panels.items()
        for network in NETWORKS
        if (selected := pick(records, part, network=network, **{field: value}))
    ]
    rows = score_rows(groups, metric)
    if not rows:
        return []
    return [
        Figure(
            rows=rows,
            spec=dots(
                x={"field": "value", "title": axis},
                rows="network",
                order=[TITLES[network] for network in NETWORKS],
                low="low",
                high="high",
                series="source",
                sources=["measured"],
                facet="panel",
                panels=list(panels.values()),
            ),
            alt=f"One panel for each value of {field}, with a point and its interval for every network.",
            **texts,
        )
    ]
