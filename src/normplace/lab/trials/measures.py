"""Measures that claims share: one value per seed, from the lines of chosen trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.trials.per_seed import PerSeed, pick, quotient

__all__ = ["difference", "metric", "quotient", "ratio"]
from normplace.lab.trials.results import TrialRecord

Fields = Mapping[str, Any]


def metric(lines: Sequence[TrialRecord], part: str, name: str, chosen: Fields) -> dict[int, float]:
    """A metric of the trials whose configuration has the values ``chosen``, by seed."""
    return dict(PerSeed.of(pick(lines, part, **chosen), name))


def difference(lines: Sequence[TrialRecord], part: str, name: str, chosen: Fields, other: Fields) -> dict[int, float]:
    """A metric of one kind of trial less that of another of the same seed, by seed."""
    return dict(PerSeed(metric(lines, part, name, chosen)) - PerSeed(metric(lines, part, name, other)))


def ratio(lines: Sequence[TrialRecord], part: str, name: str, chosen: Fields, other: Fields) -> dict[int, float]:
    """A metric of one kind of trial over that of another of the same seed, by seed."""
    return dict(PerSeed(metric(lines, part, name, chosen)) / PerSeed(metric(lines, part, name, other)))
