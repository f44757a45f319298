"""The map of gains, the falsifiers, and what eps and the power do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.specs import cells, curves, dots
from normplace.lab.studies.postdeg.claims.gains import PUBLISHED, gain
from normplace.lab.studies.postdeg.selection import AGGREGATIONS, EPS, FEATURES, POWERS, SLOTS, TASKS
from normplace.lab.trials.claims import interval
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

SCALED = {slot: title for slot, title in SLOTS.items() if slot != "none"}
HERE, PAPER = "measured here", "published, over the paper's own backbone"
VARIANTS: dict[str, dict[str, Any]] = {
    "PostDeg: degree⁻¹ after": {},
    "degree⁻¹ before": {"slot": "before"},
    "graph-wise constant after": {"source": "constant"},
    "PostDeg, one more norm": {"extra_norm": True},
    "learned gate after": {"gate": "learned"},
    "MLP gate after": {"gate": "mlp"},
    "k-core⁻¹ after": {"source": "k-core"},
    "PageRank⁻¹ after": {"source": "pagerank"},
}


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """The figures that the lines have something for."""
    return [figure for make in (_map, _falsifiers, _eps, _powers) if (figure := make(lines)) is not None]


def _row(
    lines: Sequence[TrialRecord], task: str, chosen: dict[str, Any], over: dict[str, Any]
) -> dict[str, Any] | None:
    """Mean gain in percent with its interval and the seeds won."""
    found = [100 * value for value in gain(lines, task, chosen, over).values()]
    if not found:
        return None
    mean, low, high = interval(found)
    won = f"{sum(value > 0 for value in found)}/{len(found)}"
    edges = {"low": low, "high": high} if len(found) > 1 else {}
    return {"task": TASKS[task], "gain": mean, **edges, "wins": won, "text": f"{mean:+.1f}%"}


def _rows(
    lines: Sequence[TrialRecord], grid: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]
) -> list[dict]:
    """One row per task and cell: its names, what it is, and over what."""
    found = []
    for task in TASKS:
        for names, chosen, over in grid:
            if (row := _row(lines, task, chosen, over)) is not None:
                found.append({**names, **row})
    return found


def _map(lines: Sequence[TrialRecord]) -> Figure | None:
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
    rows = _rows(lines, grid)
    if not rows:
        return None
    return Figure(
        title="Where an inverse-degree scale helps: gain over the same network without it",
        caption="Rows: how messages are joined, and what nodes bring as input. Columns: where the scale stands. "
        "Percent by which R falls, or the spread or the set grows, on unseen graphs; mean over paired seeds, with "
        "interval and seeds won in the table.",
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
        alt="Three tables of coloured cells, one per task: gain of a scale before, after or at the head, for each "
        "aggregation and input.",
    )


def _falsifiers(lines: Sequence[TrialRecord]) -> Figure | None:
    grid = [({"variant": name, "source": HERE}, chosen, {"slot": "none"}) for name, chosen in VARIANTS.items()]
    rows = _rows(lines, grid)
    if not rows:
        return None
    first = next(iter(VARIANTS))
    published = [
        {"variant": first, "source": PAPER, "task": TASKS[task], "gain": 100 * value}
        for task, value in PUBLISHED.items()
    ]
    return Figure(
        title="PostDeg, its controls and its falsifiers: gain over the LayerNorm backbone",
        caption="Softmax attention, constant input. Percent, mean over paired seeds with its 95% interval. The "
        "definitions of the falsifiers are ours; the published numbers are of the paper's own graphs and backbone.",
        rows=rows + published,
        spec=dots(
            x={"field": "gain", "title": "gain, %"},
            rows="variant",
            order=list(VARIANTS),
            low="low",
            high="high",
            series="source",
            sources=(HERE, PAPER),
            facet="task",
            panels=list(TASKS.values()),
        ),
        alt="Three panels, one per task, with a point and interval for PostDeg and each control.",
    )


def _eps(lines: Sequence[TrialRecord]) -> Figure | None:
    grid = [
        ({"scale": SLOTS[slot], "eps": eps}, {"slot": slot, "eps": eps}, {"slot": "none", "eps": eps})
        for slot in ("before", "after")
        for eps in EPS
    ]
    rows = _rows(lines, grid)
    if len({row["eps"] for row in rows}) < 3:
        return None
    return Figure(
        title="What LayerNorm's eps lets through",
        caption="Gain of an inverse-degree scale before or after the norm over the same network without it, against "
        "eps; softmax attention, constant input, mean over paired seeds with its 95% interval.",
        rows=rows,
        spec=curves(
            x={"field": "eps", "title": "eps of LayerNorm", "scale": {"type": "log"}, "axis": {"format": "~e"}},
            y={"field": "gain", "title": "gain, %"},
            series="scale",
            order=[SLOTS["before"], SLOTS["after"]],
            low="low",
            high="high",
            facet="task",
            panels=list(TASKS.values()),
            width=250,
        ),
        alt="Three panels, one per task, with the gain against eps for a scale before and after the norm.",
    )


def _powers(lines: Sequence[TrialRecord]) -> Figure | None:
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
    rows = _rows(lines, grid)
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
        alt="Three tables of coloured cells, one per task: gain by exponent, aggregation and slot.",
    )
