"""Claims on the extended map: the gain of a scale against the degree that already reaches the head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.postdeg.extended import PART, SLOT, SOURCES, ExtendedTrial, baseline, ranks, scaled_cells
from normplace.lab.studies.postdeg.measures import improvement
from normplace.lab.studies.postdeg.published import GAINS, GAINS_TEXT, PAPER
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, mean, measure, metric, quotient

KNOWN, UNKNOWN = 0.8, 0.2
"""R² of the probe from which the head knows the degree, and up to which it does not."""
SMALLEST = min(GAINS.values())
_SIZES = ("task", "seed", "steps", "train_graphs", "test_graphs")
_DEFAULTS = {field.name: field.default for field in fields(ExtendedTrial) if field.name not in _SIZES}
_NOTE = (
    "Declared before any run of this part. The probe is a linear map of the head's input, and R² its squared rank "
    "correlation with the degree on graphs that it was not fitted on. The thresholds are our choices."
)


def _metric(task: str, name: str, cell: dict[str, Any]) -> Measure:
    return metric(PART.name, name, task=task, **{**_DEFAULTS, **cell})


def extended_score(task: str, cell: dict[str, Any]) -> Measure:
    """The task's score of a cell on unseen graphs."""
    return _metric(task, "value", cell)


def extended_gain(task: str, cell: dict[str, Any]) -> Measure:
    """Relative improvement of a cell over the same network without a scale."""
    return improvement(task, extended_score(task, cell), extended_score(task, baseline(cell)))


def degree_information(task: str, cell: dict[str, Any]) -> Measure:
    """R² of the probe of the network without a scale."""
    return _metric(task, "degree_r2", baseline(cell))


@measure
def mean_gain(records: Records, task: str, low: float, high: float) -> PerSeed:
    """Mean gain of the inverse degree over the cells whose mean R² without a scale is between two numbers."""
    chosen = [gains for known, gains in _map(records, task) if low <= known <= high]
    return PerSeed.over(chosen, mean) if chosen else PerSeed()


@measure
def mean_gain_of(records: Records, task: str, cells: Sequence[dict[str, Any]]) -> PerSeed:
    """Mean gain over some cells, of the seeds that all of them have."""
    return PerSeed.over((extended_gain(task, cell)(records) for cell in cells), mean)


@measure
def rank_correlation(records: Records, task: str) -> PerSeed:
    """Rank correlation, over the cells of the inverse degree, of the gain with the mean R² without a scale."""
    pairs = _map(records, task)
    known = [r2 for r2, _ in pairs]
    return PerSeed.over((gains for _, gains in pairs), lambda gains: spearman(known, gains)) if pairs else PerSeed()


def inverse_degree_cells() -> list[dict[str, Any]]:
    """The cells of every placement, convolution and input with the inverse degree."""
    return [cell for cell in scaled_cells() if not {"source", "power", "extra_norm"} & cell.keys()]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation; NaN if one of them is constant."""
    a, b = (ranks(np.asarray(values)) for values in (first, second))
    a, b = a - a.mean(), b - b.mean()
    return quotient(float(a @ b), math.sqrt(float(a @ a) * float(b @ b)))


def _map(records: Records, task: str) -> list[tuple[float, PerSeed]]:
    """Mean R² without a scale, and gain, of the recorded cells of the inverse degree."""
    pairs = [
        (degree_information(task, cell)(records), extended_gain(task, cell)(records)) for cell in inverse_degree_cells()
    ]
    return [(known.mean(), gains) for known, gains in pairs if known and gains]


def _without_degree(task: str) -> Check:
    label = f"{TASKS[task]}: mean gain of cells with R² up to {UNKNOWN}"
    return Check(label, mean_gain(task, -10.0, UNKNOWN), at_least=SMALLEST)


def _with_input(features: str, **fields: Any) -> dict[str, Any]:
    return {"features": features, **fields}


def _gain_check(task: str, name: str, cells: Sequence[dict[str, Any]], **limit: Any) -> Check:
    return Check(f"{TASKS[task]}: {name}", mean_gain_of(task, cells), **limit)


def _placements(placement: str) -> list[dict[str, Any]]:
    """The cells of a placement with the noisy degree as input."""
    return [
        cell
        for cell in inverse_degree_cells()
        if cell.get("placement", "post") == placement and cell["features"] == "noisy-degree"
    ]


CLAIMS = (
    Claim(
        id="extended-gain-without-degree",
        paper=OURS,
        statement="The scale helps where a linear probe of the head's input does not find the degree.",
        checks=tuple(_without_degree(task) for task in TASKS),
        seeds=5,
        note=f"{_NOTE} The margin is the smallest published gain.",
    ),
    Claim(
        id="extended-no-gain-with-degree",
        paper=OURS,
        statement="The scale does not help where the head already knows the degree.",
        checks=tuple(
            Check(f"{title}: mean gain of cells with R² from {KNOWN}", mean_gain(task, KNOWN, 1.0), at_most=0.01)
            for task, title in TASKS.items()
        ),
        gates=tuple(_without_degree(task) for task in TASKS),
        seeds=5,
        note=f"{_NOTE} Void if the scale does not help anywhere.",
    ),
    Claim(
        id="extended-gain-falls-with-degree",
        paper=OURS,
        statement="The more of the degree reaches the head without the scale, the smaller its gain.",
        checks=tuple(
            Check(
                f"{title}: rank correlation of gain and R² over placements, convolutions and inputs",
                rank_correlation(task),
                at_most=-0.5,
            )
            for task, title in TASKS.items()
        ),
        seeds=5,
        note=_NOTE,
    ),
    Claim(
        id="extended-gain-with-partial-degree",
        paper=f"{PAPER}, abstract",
        statement="The scale has the published gains where the input holds a part of the degree.",
        published=GAINS_TEXT,
        checks=tuple(
            _gain_check(
                task,
                f"mean gain with softmax attention and a {features} input",
                [_with_input(features)],
                at_least=GAINS[task],
            )
            for task in TASKS
            for features in ("noisy-degree", "clipped-degree", "coarse-degree")
        ),
        seeds=5,
        note=f"{_NOTE} The paper's inputs are unknown to us. With these inputs the backbone is not a random order.",
    ),
    Claim(
        id="extended-gain-in-every-placement",
        paper=f"{PAPER}, abstract",
        statement="The scale also helps after the norms of Pre-LN and Peri-LN blocks.",
        checks=tuple(
            _gain_check(
                task,
                f"mean gain over convolutions, {placement}, noisy degree as input",
                _placements(placement),
                above=0.0,
            )
            for task in TASKS
            for placement in SLOT
        ),
        seeds=5,
        note=f"{_NOTE} The paper's words are 'any normalized residual stack'.",
    ),
    Claim(
        id="extended-other-scalars",
        paper=f"{PAPER}, abstract",
        statement="Other scalars of the topology in the same slot also help.",
        checks=tuple(
            _gain_check(
                task,
                f"gain of the inverse {source}, random input",
                [_with_input("random", source=source)],
                at_least=SMALLEST,
            )
            for task in TASKS
            for source in SOURCES[1:]
        ),
        seeds=5,
        note=f"{_NOTE} Softmax attention. The paper's words are 'any positive topology scalar'; the margin is the "
        "smallest published gain.",
    ),
    Claim(
        id="extended-extra-norm",
        paper=f"{PAPER}, abstract",
        statement="Another LayerNorm before the head removes the gain, also where the backbone is not a random order.",
        checks=tuple(
            _gain_check(
                task,
                f"gain before another LayerNorm, {features} input",
                [_with_input(features, extra_norm=True)],
                at_most=0.01,
                gates=(
                    _gain_check(
                        task,
                        f"gain without another LayerNorm, {features} input",
                        [_with_input(features)],
                        at_least=SMALLEST,
                    ),
                ),
            )
            for task in TASKS
            for features in ("random", "noisy-degree")
        ),
        seeds=5,
        note=f"{_NOTE} Both networks, with and without the scale, have the other norm. Void where there is no gain to "
        "remove.",
    ),
)
