"""Figures of scores and accuracies that several parts draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normplace.lab.report.rows import Group, Spread, mean_rows, score_rows, seed_range
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.trials.intervals import STUDENT
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

SCORES = ("string", "character")


def accuracy_rows(groups: Iterable[Group], metric: str) -> list[dict[str, Any]]:
    """The mean and the range over seeds of an accuracy, which is near 0 in some seeds and near 1 in others."""
    return score_rows(groups, metric, seed_range)


def accuracy_dots(
    kind: str,
    rows: str,
    order: Iterable[str],
    panels: Iterable[str],
    *,
    series: str = "source",
    sources: Iterable[str] = ("measured",),
    facet: str = "panel",
) -> dict[str, Any]:
    """A point with its range over seeds for each string or character accuracy, on an axis from 0 to 1."""
    return dots(
        x={"field": "value", "title": f"{kind} accuracy", "scale": {"domain": [0, 1]}},
        rows=rows,
        order=list(order),
        series=series,
        sources=list(sources),
        facet=facet,
        panels=list(panels),
    )


def accuracy_at_lengths(
    networks: Mapping[str, Mapping[int, Sequence[TrialRecord]]], metrics: Mapping[str, str], **texts: Any
) -> Figure:
    """Draw string and character accuracy, with a panel for every length of strings and a row for every network."""
    lengths = sorted({length for by_length in networks.values() for length in by_length})
    rows = []
    for metric, score in metrics.items():
        groups: list[Group] = [
            ({"length": f"{length} characters", "network": name, "measure": score}, selected)
            for length in lengths
            for name, by_length in networks.items()
            if (selected := by_length.get(length))
        ]
        rows += accuracy_rows(groups, metric)
    return Figure(
        rows=rows,
        spec=dots(
            x={"field": "value", "title": "accuracy", "scale": {"domain": [0, 1]}},
            rows="network",
            order=list(networks),
            series="measure",
            sources=list(metrics.values()),
            facet="length",
            panels=[f"{length} characters" for length in lengths],
        ),
        alt="One panel for each length of strings; in each, points with their ranges for the string and the character "
        "accuracy of every network.",
        **texts,
    )


def accuracy_by_length(networks: Mapping[str, Sequence[TrialRecord]], longest: int, **texts: Any) -> Figure:
    """Draw string and character accuracy by length, one line for each network; ``longest`` has a dashed line."""
    rows = []
    for score in SCORES:
        groups: list[Group] = [({"measure": score, "network": name}, selected) for name, selected in networks.items()]
        rows += [{"accuracy": row.pop(score), **row} for row in mean_rows(groups, "length", score, spread=seed_range)]
    return Figure(
        rows=rows,
        spec=curves(
            x={"field": "length", "title": "characters", "scale": {"type": "log", "nice": False}},
            y={"field": "accuracy", "title": "accuracy", "scale": {"domain": [0, 1]}},
            series="network",
            order=list(networks),
            band=True,
            facet="measure",
            panels=SCORES,
            rules=(longest,),
        ),
        alt="Two panels, string and character accuracy against the length of strings, one line for each network.",
        **texts,
    )


def score_figures(
    records: Records,
    part: str,
    field: str,
    panel: str,
    metric: str,
    axis: str,
    spread: Spread = STUDENT,
    **texts: Any,
) -> list[Figure]:
    """Draw a metric of every network, with one panel for each value of a configuration field.

    Args:
        records: Records of successful trials.
        part: Name of the part.
        field: The configuration field.
        panel: Format of a panel's title, such as ``{} pairs``.
        metric: Name of the metric.
        axis: Title of the axis.
        spread: What to draw around the mean.
        **texts: Title and caption of the figure.
    """
    panels = {value: panel.format(value) for value in config_values(records, part, field)}
    groups: list[Group] = [
        ({"panel": title, "network": TITLES[network], "source": "measured"}, selected)
        for value, title in panels.items()
        for network in NETWORKS
        if (selected := pick(records, part, network=network, **{field: value}))
    ]
    return [
        Figure(
            rows=score_rows(groups, metric, spread),
            spec=dots(
                x={"field": "value", "title": axis},
                rows="network",
                order=[TITLES[network] for network in NETWORKS],
                series="source",
                sources=["measured"],
                facet="panel",
                panels=list(panels.values()),
            ),
            alt=f"One panel for each value of {field}, with a point and its spread for every network.",
            **texts,
        )
    ]
