"""Claims on the extended map: the gain of a scale against the degree that already reaches the head."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.postdeg.extended import PART, ExtendedTrial, baseline, scaled_cells
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, measure, metric

KNOWN, UNKNOWN = 0.8, 0.2
"""R² of the probe from which the head knows the degree, and up to which it does not."""
_SIZES = ("task", "seed", "steps", "train_graphs", "test_graphs")
_DEFAULTS = {field.name: field.default for field in fields(ExtendedTrial) if field.name not in _SIZES}
_NOTE = (
    "Declared before any run of this part. The probe is a linear map of the head's input, and R² its squared rank "
    "correlation with the degree on graphs that it was not fitted on. The thresholds are our choices."
)


def _metric(task: str, name: str, cell: dict[str, Any]) -> Measure:
    return metric(PART.name, name, task=task, **{**_DEFAULTS, **cell})


def extended_gain(task: str, cell: dict[str, Any]) -> Measure:
    """Relative improvement of a cell over the same network without a scale."""
    reference = _metric(task, "value", baseline(cell))
    sign = -1 if task == "dismantling" else 1
    return sign * ((_metric(task, "value", cell) - reference) / reference)


def degree_information(task: str, cell: dict[str, Any]) -> Measure:
    """R² of the probe of the network without a scale."""
    return _metric(task, "degree_r2", baseline(cell))


@measure
def mean_gain(records: Records, task: str, low: float, high: float) -> PerSeed:
    """Mean gain of the inverse degree over the cells whose mean R² without a scale is between two numbers."""
    gains = []
    for cell in scaled_cells():
        if not {"source", "power", "extra_norm"} & cell.keys():
            known, gained = degree_information(task, cell)(records), extended_gain(task, cell)(records)
            if known and gained and low <= known.mean() <= high:
                gains.append(gained)
    return PerSeed.over(gains, lambda values: sum(values) / len(values)) if gains else PerSeed()


def _gain_without_degree(task: str) -> Check:
    label = f"{TASKS[task]}: mean gain of cells with R² up to {UNKNOWN}"
    return Check(label, mean_gain(task, 0.0, UNKNOWN), at_least=0.025)


CLAIMS = (
    Claim(
        id="extended-gain-without-degree",
        paper=OURS,
        statement="The scale helps where a linear probe of the head's input does not find the degree.",
        checks=tuple(
            Check(
                f"{title}: mean gain of cells with R² up to {UNKNOWN}", mean_gain(task, -10.0, UNKNOWN), at_least=0.025
            )
            for task, title in TASKS.items()
        ),
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
        gates=tuple(
            Check(
                f"{title}: mean gain of cells with R² up to {UNKNOWN}", mean_gain(task, -10.0, UNKNOWN), at_least=0.025
            )
            for task, title in TASKS.items()
        ),
        seeds=5,
        note=f"{_NOTE} Void if the scale does not help anywhere.",
    ),
)
