"""Variance and gradients over depth and training, learning rates, loss, and outliers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.periln.figures.rates import rate_cells
from normplace.lab.studies.periln.measures import best_records, loss
from normplace.lab.studies.periln.training import MORE, NAMED, OTHERS, PART, SIZES
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure

PLACEMENTS = NAMED + OTHERS + MORE
MOMENTS = {"start": "before training", "quarter": "after a quarter of it", "end": "after training"}
_BEST = "Each placement at its best learning rate, mean over seeds."


def figures(records: Records) -> list[Figure]:
    """Draw the figures of every size."""
    return [figure for size in SIZES for figure in _of_size(records, size)]


def _of_size(records: Records, size: str) -> Iterator[Figure]:
    best = {name: best_records(records, PART.name, size=size, placement=name) for name in PLACEMENTS}
    groups: list[Group] = [({"placement": name}, selected) for name, selected in best.items() if selected]
    if not groups:
        return
    placements = [str(columns["placement"]) for columns, _ in groups]
    yield _over_training(
        groups,
        placements,
        title=f"Variance of the stream over depth and training, {size}",
        caption=f"{_BEST} Variance over features after each branch, two per layer, logarithmic.",
        position={"field": "depth", "title": "branches passed"},
        value="variance",
    )
    yield _over_training(
        groups,
        placements,
        title=f"Gradient norm of each layer over training, {size}",
        caption=f"{_BEST} Norm of the loss gradient over the parameters of the layer's branches, logarithmic.",
        position={"field": "layer", "title": "layer"},
        value="gradient",
    )
    yield _by_rate(records, size, placements)
    yield Figure(
        title=f"Training loss, {size}",
        caption=f"{_BEST} Bits per byte between two evaluations, with the 95% interval.",
        rows=mean_rows(groups, "step", "loss"),
        spec=curves(
            x={"field": "step", "title": "step"},
            y={"field": "loss", "title": "bits per byte", "scale": {"zero": False}},
            series="placement",
            order=placements,
            band=True,
        ),
        alt="Loss against steps, a line with a band for each placement.",
    )
    yield _outliers(groups, placements, size)


def _over_training(
    groups: Sequence[Group],
    placements: Sequence[str],
    *,
    title: str,
    caption: str,
    position: dict[str, Any],
    value: str,
) -> Figure:
    """One panel for each moment of training, one line for each placement."""
    rows = []
    for moment, panel in MOMENTS.items():
        means = mean_rows(groups, position["field"], f"{value}_{moment}", band=False)
        rows += [{"when": panel, value: row.pop(f"{value}_{moment}"), **row} for row in means]
    return Figure(
        title=title,
        caption=caption,
        rows=rows,
        spec=curves(
            x=position,
            y={"field": value, "title": value, "scale": {"type": "log"}},
            series="placement",
            order=placements,
            facet="when",
            panels=list(MOMENTS.values()),
        ),
        alt=f"Three panels, {', '.join(MOMENTS.values())}, each with a line of the {value} for every placement.",
    )


def _by_rate(records: Records, size: str, placements: Sequence[str]) -> Figure:
    """Bits per byte of every placement at every learning rate, with the numbers of diverged and stuck seeds."""
    rows = []
    for name in placements:
        for rate in config_values(records, PART.name, "learning_rate", size=size, placement=name):
            selected = pick(records, PART.name, size=size, placement=name, learning_rate=rate)
            bits = fmean(map(loss, selected))
            diverged = sum(bool(record.metrics.get("diverged")) for record in selected)
            stuck = sum(record.metrics.get("stuck") == 1 and not record.metrics.get("diverged") for record in selected)
            counts = [f"{n} of {len(selected)} {state}" for n, state in ((diverged, "diverged"), (stuck, "stuck")) if n]
            row = {"placement": name, "rate": f"{rate:g}", "bits": bits, "diverged": diverged, "stuck": stuck}
            rows.append({**row, "shown": ", ".join([f"{bits:.2f}", *counts])})
    return Figure(
        title=f"Bits per byte by placement and learning rate, {size}",
        caption="Mean over seeds on the validation text; a trial worse than a uniform guess counts as one, 8 bits. "
        "Diverged: not finite, no better than that guess, or more than 1 bit above its lowest loss. Stuck: within 0.05 "
        "bits of the entropy of byte frequencies.",
        rows=rows,
        spec=rate_cells(rows, "placement", step=190),
        alt="A table of placements by learning rates, each cell with its bits per byte and its lost seeds.",
    )


def _outliers(groups: Sequence[Group], placements: Sequence[str], size: str) -> Figure:
    """Distance of the stream from overflow, and its outliers."""
    panels = {
        "fp16 headroom in powers of two": "headroom",
        "largest over median magnitude": "ratio",
        "massive activations": "massive",
    }
    moments = {moment: MOMENTS[moment] for moment in ("start", "end")}
    rows = [
        {"measure": panel, "when": title, **row}
        for panel, name in panels.items()
        for moment, title in moments.items()
        for row in score_rows(groups, f"{name}_{moment}")
    ]
    return Figure(
        title=f"Headroom and outliers of the stream, {size}",
        caption=f"{_BEST} Over all depths: the least headroom before fp16 overflows, the greatest ratio of the largest "
        "to the median magnitude, and the number of activations above 100 and above 1000 times the median; 95% "
        "intervals.",
        rows=rows,
        spec=dots(
            x={"field": "value", "title": None},
            rows="placement",
            order=list(placements),
            series="when",
            sources=list(moments.values()),
            facet="measure",
            panels=list(panels),
        )
        | {"resolve": {"scale": {"x": "independent"}}},
        alt="Three panels with a row for each placement, before and after training.",
    )
