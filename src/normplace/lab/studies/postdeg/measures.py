"""Gains of one kind of selection policy over another of the same seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from normplace.lab.studies.postdeg import classical
from normplace.lab.studies.postdeg.selection import PART, SelectionTrial
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, measure, metric

Cell = Mapping[str, Any]
BACKBONE: Cell = {"slot": "none"}
RANDOM_ORDER = {"influence": 0.335, "dismantling": 0.433, "independent-set": 0.387}
"""Score of a random order, mean over the test graphs of seeds 0 to 9; each seed is within 0.015 of it."""
# Sizes and scoring belong to the plan of a scale: each kind of policy has one of them there.
_SIZES = ("task", "seed", "steps", "train_graphs", "test_graphs", "scoring")
_DEFAULTS = {field.name: field.default for field in fields(SelectionTrial) if field.name not in _SIZES}


def cell(**changes: Any) -> dict[str, Any]:
    """All configuration fields of a kind of policy; those not given are PostDeg's."""
    return {**_DEFAULTS, **changes}


def score(task: str, **changes: Any) -> Measure:
    """The task's score on unseen graphs."""
    return metric(PART.name, "value", task=task, **cell(**changes))


def classical_score(task: str, method: str) -> Measure:
    """The task's score of a classical method on the same graphs."""
    return metric(classical.PART.name, "value", task=task, method=method)


def improvement(task: str, value: Measure, reference: Measure | float) -> Measure:
    """Relative improvement of a score: by how much R falls, or the spread or the set grows."""
    sign = -1 if task == "dismantling" else 1
    return sign * ((value - reference) / reference)


def gain_over_classical(task: str, policy: Cell, method: str) -> Measure:
    """Relative improvement of a policy over a classical method on the same graphs."""
    return improvement(task, score(task, **policy), classical_score(task, method))


def classical_gain(task: str, method: str, baseline: Cell) -> Measure:
    """Relative improvement of a classical method over a policy on the same graphs."""
    return improvement(task, classical_score(task, method), score(task, **baseline))


def gain(task: str, policy: Cell, baseline: Cell) -> Measure:
    """Relative improvement of a policy over a baseline."""
    return improvement(task, score(task, **policy), score(task, **baseline))


def gain_over_chance(task: str, **changes: Any) -> Measure:
    """Relative improvement of a policy over a random order of the nodes."""
    return improvement(task, score(task, **changes), RANDOM_ORDER[task])


def wins(task: str, policy: Cell, baseline: Cell) -> Measure:
    """1 for a seed with a positive gain, else 0."""
    return gain(task, policy, baseline).map(lambda value: float(value > 0))


@measure
def share_of_gain(records: Records, task: str, control: Cell, baseline: Cell) -> PerSeed:
    """Gain of a control as a share of PostDeg's mean gain, both over the same baseline."""
    postdeg = {key: value for key, value in baseline.items() if key != "slot"}
    reference = gain(task, postdeg, baseline)(records)
    return gain(task, control, baseline)(records) / reference.mean() if reference else PerSeed()
