"""How much better one kind of policy is than another of the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from normplace.lab.studies.postdeg.selection import PART, SelectionTrial
from normplace.lab.trials.claims import Check
from normplace.lab.trials.measures import metric, quotient
from normplace.lab.trials.results import TrialRecord

PAPER = "arXiv 2606.14022"
# Of the abstract: over the LayerNorm backbone.
PUBLISHED = {"influence": 0.035, "dismantling": 0.025, "independent-set": 0.056}
RANDOM_ORDER = {"influence": 0.335, "dismantling": 0.433, "independent-set": 0.387}
"""The measure of a random order, mean over the test graphs of seeds 0 to 9; those of a seed are within 0.015 of it."""
BACKBONE = {"slot": "none"}
_SIZES = ("task", "seed", "steps", "train_graphs", "test_graphs")
_DEFAULTS = {one.name: one.default for one in fields(SelectionTrial) if one.name not in _SIZES}


def cell(**chosen: Any) -> dict[str, Any]:
    """All that tells one kind of policy from another: what is not named is PostDeg's."""
    return {**_DEFAULTS, **chosen}


def values(lines: Sequence[TrialRecord], task: str, **chosen: Any) -> dict[int, float]:
    """The task's own measure on unseen graphs, by seed."""
    return metric(lines, PART.name, "value", {"task": task, **cell(**chosen)})


def gain(lines: Sequence[TrialRecord], task: str, chosen: dict[str, Any], over: dict[str, Any]) -> dict[int, float]:
    """The relative improvement of the task's measure over other policies, by seed.

    R falls by, or the spread or the set grows by, this share of the other's.
    """
    ours, theirs = values(lines, task, **chosen), values(lines, task, **over)
    sign = -1 if task == "dismantling" else 1
    return {seed: sign * quotient(ours[seed] - theirs[seed], theirs[seed]) for seed in ours if seed in theirs}


def over_chance(lines: Sequence[TrialRecord], task: str, **chosen: Any) -> dict[int, float]:
    """The relative improvement of the task's measure over a random order of the nodes, by seed."""
    sign, chance = -1 if task == "dismantling" else 1, RANDOM_ORDER[task]
    return {seed: sign * (value - chance) / chance for seed, value in values(lines, task, **chosen).items()}


def learned(task: str, words: str, **chosen: Any) -> Check:
    """The gate that the backbone a gain is measured over has learned something."""
    measure = partial(over_chance, task=task, **{**chosen, **BACKBONE})
    return Check(f"{task}: gain of {words} over a random order", measure, at_least=0.05)


def gains_at_all(task: str) -> Check:
    """The gate that PostDeg, whose gain is to be explained, gains anything."""
    return Check(
        f"{task}: PostDeg's gain over its backbone", partial(gain, task=task, chosen={}, over=BACKBONE), at_least=0.05
    )


def wins(lines: Sequence[TrialRecord], task: str, chosen: dict[str, Any], over: dict[str, Any]) -> dict[int, float]:
    """1 for a seed where the policy is better, else 0."""
    return {seed: float(value > 0) for seed, value in gain(lines, task, chosen, over).items()}


def share_kept(
    lines: Sequence[TrialRecord], task: str, control: dict[str, Any], over: dict[str, Any]
) -> dict[int, float]:
    """The gain of a control as a share of PostDeg's mean gain, both over the same backbone, by seed."""
    reference = gain(lines, task, {key: over[key] for key in over if key != "slot"}, over)
    if not reference:
        return {}
    mean = sum(reference.values()) / len(reference)
    return {seed: quotient(value, mean) for seed, value in gain(lines, task, control, over).items()}
