"""The figures of a comparison's page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normplace.lab.compare.edit_trials import EditTrials, rate_scores
from normplace.lab.compare.result import Comparison
from normplace.lab.report.charts import PALETTE
from normplace.lab.report.rows import mean_columns
from normplace.lab.report.specs import curves, dots
from normplace.lab.report.text import count
from normplace.lab.trials.record import TrialRecord
from normplace.lab.trials.study import Figure

STREAM = {
    "stream_growth": "log10 of the stream's growth",
    "stream_peak": "log10 of the largest magnitude",
    "fp16_headroom": "fp16 headroom, powers of two",
    "gradient_evenness": "evenness of gradients",
}
"""Titles of the panels on the residual stream."""
LOGARITHMIC = {"stream_growth", "stream_peak"}
VERDICT_COLOURS = {"better": PALETTE[0], "tied": PALETTE[4], "worse": PALETTE[1]}


def figures(comparison: Comparison) -> list[Figure]:
    """The figures that have rows, the one with the differences first."""
    trials = comparison.trials()
    score = comparison.measure
    drawn = [
        forest(comparison),
        _training(trials, "held_out", f"{score.capitalize()} during training", score),
        _training(trials, "loss", "Training loss", "training loss"),
        _rates(trials, score),
        _stream(trials),
    ]
    return [figure for figure in drawn if figure.rows]


def forest(comparison: Comparison) -> Figure:
    """Paired differences with their simultaneous intervals: every edit against the baseline, the best against each."""
    score = comparison.measure
    against, best = f"each edit minus {comparison.baseline}", f"{comparison.best} minus each edit"
    differences = [(against, row.edit, row.difference) for row in comparison.rows]
    if len(comparison.rows) > 2:
        differences += [(best, row.edit, row.best_difference) for row in comparison.rows]
    rows = [
        {
            "family": family,
            "edit": edit,
            "difference": one.estimate,
            "low": one.low,
            "high": one.high,
            "verdict": str(one.verdict),
            "seeds": one.seeds,
            "diverged": one.diverged,
            "seeds needed": one.seeds_needed,
        }
        for family, edit, one in differences
        if one is not None and one.seeds
    ]
    spec = dots(
        x={"field": "difference", "title": f"difference of the {score}"},
        rows="edit",
        order=[row.edit for row in comparison.rows],
        series="verdict",
        sources=list(VERDICT_COLOURS),
        facet="family",
        panels=[against, best],
    )
    zero = {
        "data": {"values": [{"zero": 0}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "aria": False},
        "encoding": {"x": {"field": "zero", "type": "quantitative"}},
    }
    spec["spec"]["layer"].insert(0, zero)
    spec["spec"]["height"] = {"step": 26}
    for layer in spec["spec"]["layer"][1:]:
        layer["encoding"].pop("yOffset")
        layer["encoding"]["color"]["scale"]["range"] = list(VERDICT_COLOURS.values())
    side = "left" if comparison.better == "smaller" else "right"
    return Figure(
        title="Paired differences",
        caption=f"Mean over seeds with simultaneous 95% intervals; in the panels, {side} of zero is better. Seeds with "
        "which one of the two diverged have no difference; the verdict counts them.",
        rows=rows,
        spec=spec,
        alt=f"Differences of the {score} between edits, with their intervals.",
    )


def _training(trials: Mapping[str, EditTrials], series: str, title: str, axis: str) -> Figure:
    """A series of the reported trials over steps."""
    rows = [
        {"edit": edit, "step": step, **numbers}
        for edit, own in trials.items()
        for step, values in sorted(_by_step(own.final, series).items())
        if (numbers := mean_columns(values))
    ]
    spec = curves(
        x={"field": "step", "title": "step"},
        y={"field": "value", "title": axis, "scale": {"zero": False}},
        series="edit",
        order=list(trials),
        band=True,
    )
    return Figure(
        title=title,
        caption="Mean over the reported seeds with its 95% interval, not corrected for the number of edits. A trial "
        "that diverged is part of the mean up to the step at which it did; one that ends far worse than the untrained "
        "baseline is left out.",
        rows=rows,
        spec=spec,
        alt=f"{title} of each edit over steps.",
    )


def _by_step(records: Iterable[TrialRecord], series: str) -> dict[float, list[float | None]]:
    values: dict[float, list[float | None]] = {}
    for record in records:
        steps, numbers = record.series.get(f"{series}_step", []), record.series.get(series, [])
        for step, number in zip(steps, numbers, strict=False):
            if step is not None:
                values.setdefault(step, []).append(number)
    return values


def _rates(trials: Mapping[str, EditTrials], score: str) -> Figure:
    """Scores of the search over learning rates, one panel per number of steps."""
    lengths = sorted({record.config["steps"] for own in trials.values() for record in own.search})
    panels = {steps: count(steps, "step") for steps in lengths}
    rows: list[dict[str, Any]] = []
    for edit, own in trials.items():
        for steps in lengths:
            grid = rate_scores(record for record in own.search if record.config["steps"] == steps)
            rows += [
                {
                    "rung": panels[steps],
                    "edit": edit,
                    "learning rate": rate,
                    **(mean_columns(scores.values()) or {"value": None, "n": 0}),
                    "diverged": sum(value is None for value in scores.values()),
                }
                for rate, scores in grid.items()
            ]
    spec = curves(
        x={"field": "learning rate", "title": "learning rate", "scale": {"type": "log"}},
        y={"field": "value", "title": score, "scale": {"zero": False}},
        series="edit",
        order=list(trials),
        facet="rung",
        panels=list(panels.values()),
    )
    spec["spec"]["layer"][-1]["mark"]["point"] = {"size": 40}
    return Figure(
        title="Learning rates tried",
        caption="Mean on the held-out data that choose the learning rate, which are not those reported. Each panel has "
        "the trials of one length. Trials that diverged have no point; the table counts them.",
        rows=rows,
        spec=spec,
        alt=f"{score.capitalize()} of each edit over learning rates.",
    )


def _stream(trials: Mapping[str, EditTrials]) -> Figure:
    """Signals of the residual stream of the trained networks."""
    rows = [
        {"signal": title, "edit": edit, "source": "reported seeds", **numbers}
        for name, title in STREAM.items()
        for edit, own in trials.items()
        if (numbers := mean_columns(_signal(record, name) for record in own.final))
    ]
    spec = dots(
        x={"field": "value", "title": None},
        rows="edit",
        order=list(trials),
        series="source",
        sources=["reported seeds"],
        facet="signal",
        panels=_present(rows, "signal"),
    )
    spec["resolve"] = {"scale": {"x": "independent"}}
    for layer in spec["spec"]["layer"]:
        for channel in ("color", "shape"):
            layer["encoding"].get(channel, {})["legend"] = None
    return Figure(
        title="Growth of the residual stream",
        caption="Means over the reported seeds after training, with 95% intervals that are not corrected for the "
        "number of edits.",
        rows=rows,
        spec=spec,
        alt="Growth and peak of the residual stream of each edit.",
    )


def _signal(record: TrialRecord, name: str) -> float | None:
    """A signal of a trial; the logarithm of those that differ by orders of magnitude."""
    value = record.metrics.get(name)
    if value is None or name not in LOGARITHMIC:
        return value
    return math.log10(value) if value > 0 else None


def _present(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))
