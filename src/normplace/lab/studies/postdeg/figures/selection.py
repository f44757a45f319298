"""The map of gains, the falsifiers, and the effect of eps and the exponent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.rows import mean_columns
from normplace.lab.report.specs import cells, curves, dots
from normplace.lab.studies.postdeg.measures import Cell, classical_gain, gain, gain_over_classical
from normplace.lab.studies.postdeg.networks import SLOTS
from normplace.lab.studies.postdeg.published import GAINS
from normplace.lab.studies.postdeg.selection import EPS, FEATURES, POWERS, TASKS
from normplace.lab.tasks.selection_names import METHODS, methods_of
from normplace.lab.trials.per_seed import PerSeed, Records
from normplace.lab.trials.study import Figure
from normplace.models.convolutions import AGGREGATIONS

SCALED = {slot: title for slot, title in SLOTS.items() if slot != "none"}
HERE, CLASSICAL, PUBLISHED = "policies", "classical methods", "published, over the paper's backbone"
VARIANTS: dict[str, dict[str, Any]] = {
    "PostDeg: degree⁻¹ after": {},
    "degree⁻¹ before": {"slot": "before"},
    "graph-wise constant after": {"source": "constant"},
    "PostDeg, extra norm": {"extra_norm": True},
    "learned gate after": {"gate": "learned"},
    "MLP gate after": {"gate": "mlp"},
    "k-core⁻¹ after": {"source": "k-core"},
    "PageRank⁻¹ after": {"source": "pagerank"},
}


def figures(records: Records) -> list[Figure]:
    """Draw the figures that the records have data for."""
    return [figure for draw in (_map, _falsifiers, _eps, _powers) if (figure := draw(records)) is not None]


def _rows(records: Records, grid: Sequence[tuple[dict[str, Any], Cell, Cell]]) -> list[dict[str, Any]]:
    """Mean gain in percent with its interval and the seeds won, one row per task and cell."""
    return [
        row
        for task, title in TASKS.items()
        for columns, policy, baseline in grid
        for row in _row({**columns, "task": title}, (100 * gain(task, policy, baseline))(records))
    ]


def _row(columns: dict[str, Any], percent: PerSeed) -> list[dict[str, Any]]:
    """Mean gain with its interval and the seeds won; empty without records."""
    if not percent:
        return []
    numbers = mean_columns(percent.values(), "gain")
    won = f"{sum(value > 0 for value in percent.values())}/{numbers.pop('n')}"
    return [{**columns, **numbers, "wins": won, "text": f"{numbers['gain']:+.1f}%"}]


def _map(records: Records) -> Figure | None:
    places = {
        f"{title}, {features}": {"aggregation": aggregation, "features": features}
        for aggregation, title in AGGREGATIONS.items()
        for features in FEATURES
    }
    grid = [
        ({"place": name, "scale": title}, {**place, "slot": slot}, {**place, "slot": "none"})
        for name, place in places.items()
        for slot, title in SCALED.items()
    ]
    rows = _rows(records, grid)
    if not rows:
        return None
    return Figure(
        title="Gain of an inverse-degree scale over the same network without it",
        caption="Rows: aggregation and input features. Columns: slot of the scale. Percent by which R falls, or "
        "the spread or the set grows, on unseen graphs; mean over paired seeds, with interval and seeds won in the "
        "table.",
        rows=rows,
        spec=cells(
            x="scale",
            columns=list(SCALED.values()),
            y="place",
            rows=list(places),
            value="gain",
            text="text",
            title="gain, %",
            reach=20,
            facet="task",
            panels=list(TASKS.values()),
            step=108,
        ),
        alt="Three tables of colored cells, one per task: gain of a scale before, after or at the head, for each "
        "aggregation and input.",
    )


def _falsifiers(records: Records) -> Figure | None:
    grid = [({"variant": name, "source": HERE}, policy, {"slot": "none"}) for name, policy in VARIANTS.items()]
    rows = _rows(records, grid)
    if not rows:
        return None
    methods = [
        row
        for task, title in TASKS.items()
        for method in methods_of(task)
        for row in _row(
            {"variant": METHODS[method].title, "source": CLASSICAL, "task": title},
            (100 * classical_gain(task, method, {"slot": "none"}))(records),
        )
    ]
    first = next(iter(VARIANTS))
    published = [
        {"variant": first, "source": PUBLISHED, "task": TASKS[task], "gain": 100 * value}
        for task, value in GAINS.items()
    ]
    spec = dots(
        x={"field": "gain", "title": "gain, %"},
        rows="variant",
        order=[*VARIANTS, *(method.title for method in METHODS.values())],
        series="source",
        sources=(HERE, CLASSICAL, PUBLISHED),
        facet="task",
        panels=list(TASKS.values()),
    )
    spec["spec"]["height"] = {"step": 8}  # most rows have one source
    return Figure(
        title="PostDeg, its controls and its falsifiers: gain over the LayerNorm backbone",
        caption="Softmax attention, constant input. Percent, mean over paired seeds with its 95% interval. We "
        "chose the definitions of the falsifiers; the published numbers are for the paper's graphs and backbone. "
        "Classical methods order the same graphs.",
        rows=rows + methods + published,
        spec=spec,
        alt="Three panels, one per task, with a point and interval for PostDeg, each control and classical method.",
    )


def _eps(records: Records) -> Figure | None:
    rows = [
        row
        for task, title in TASKS.items()
        for slot in ("before", "after")
        for eps in EPS
        for row in _row(
            {"scale": SLOTS[slot], "eps": eps, "task": title},
            (100 * gain_over_classical(task, {"slot": slot, "eps": eps}, "random"))(records),
        )
    ]
    if len({row["eps"] for row in rows}) < 3:
        return None
    return Figure(
        title="Gain of a scale before and after LayerNorm, by eps",
        caption="Gain of the network with an inverse-degree scale before or after the norm over random orders, against "
        "eps; softmax attention, constant input, mean over paired seeds with its 95% interval. Without a scale the "
        "network orders nodes at random.",
        rows=rows,
        spec=curves(
            x={"field": "eps", "title": "eps of LayerNorm", "scale": {"type": "log"}, "axis": {"format": "~e"}},
            y={"field": "gain", "title": "gain, %"},
            series="scale",
            order=[SLOTS["before"], SLOTS["after"]],
            band=True,
            facet="task",
            panels=list(TASKS.values()),
            width=250,
        ),
        alt="Three panels, one per task, with the gain against eps for a scale before and after the norm.",
    )


def _powers(records: Records) -> Figure | None:
    grid = [
        (
            {"place": f"{AGGREGATIONS[aggregation]}, {SCALED[slot]}", "power": f"{power:+g}"},
            {"aggregation": aggregation, "slot": slot, "power": power},
            {"aggregation": aggregation, "slot": "none"},
        )
        for aggregation in AGGREGATIONS
        for slot in SCALED
        for power in POWERS
    ]
    rows = _rows(records, grid)
    if len({row["power"] for row in rows}) < 2:
        return None
    return Figure(
        title="The exponent of the degree: gain over the same network without a scale",
        caption="Constant input; percent, mean over paired seeds, with intervals and seeds won in the table.",
        rows=rows,
        spec=cells(
            x="power",
            columns=[f"{power:+g}" for power in POWERS],
            y="place",
            rows=list(dict.fromkeys(row["place"] for row in rows)),
            value="gain",
            text="text",
            title="gain, %",
            reach=20,
            facet="task",
            panels=list(TASKS.values()),
            step=66,
        ),
        alt="Three tables of colored cells, one per task: gain by exponent, aggregation and slot.",
    )
