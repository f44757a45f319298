"""Measures that claims share: one value per seed, from the lines of chosen trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.trials.claims import by_seed, pick
from normplace.lab.trials.results import TrialRecord

Fields = Mapping[str, Any]


def metric(lines: Sequence[TrialRecord], part: str, name: str, chosen: Fields) -> dict[int, float]:
    """A metric of the trials whose configuration has the values ``chosen``, by seed."""
    return by_seed(pick(lines, part, **chosen), name)


def difference(lines: Sequence[TrialRecord], part: str, name: str, chosen: Fields, other: Fields) -> dict[int, float]:
    """A metric of one kind of trial less that of another of the same seed, by seed."""
    ours, theirs = metric(lines, part, name, chosen), metric(lines, part, name, other)
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def ratio(lines: Sequence[TrialRecord], part: str, name: str, chosen: Fields, other: Fields) -> dict[int, float]:
    """A metric of one kind of trial over that of another of the same seed, by seed."""
    ours, theirs = metric(lines, part, name, chosen), metric(lines, part, name, other)
    return {seed: quotient(ours[seed], theirs[seed]) for seed in ours if seed in theirs}


def quotient(numerator: float, denominator: float) -> float:
    """The quotient; NaN, which fails every check, where the denominator is 0."""
    return numerator / denominator if denominator else math.nan
