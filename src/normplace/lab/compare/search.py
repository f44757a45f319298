"""The search of a learning rate within one edit: successive halving, with a grid that grows.

Every rung trains from the start with its own complete schedule. The shortest rung tries the whole grid, which also
measures how sensitive the edit is to the learning rate (Wortsman et al. 2023, arXiv 2309.14322). The longer rung tries
the best two. Whenever the best learning rate is the smallest or largest of the grid, the grid grows on that side.

The state of a search is computed from its scores alone, so an interrupted search resumes where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normplace.errors import UsageError, expect_number

FIRST_RUNG = 0.25
"""Length of the shortest rung, as a fraction of the steps of a reported training; a time budget may shorten it."""
RUNG_RATIO = 2
"""Length of the longer rung divided by that of the shortest."""
RUNGS = 2
PROMOTED = 2
"""Learning rates that the longer rung tries."""
MOST_ADDED = 4
"""Learning rates by which a grid grows at most."""
HALF_DECADE = math.sqrt(10)
LEAST_RATIO = 1.25
"""Smallest ratio of a learning rate that is added to its neighbour."""

Scores = Mapping[tuple[int, float], float | None]
"""The choosing measure by rung and learning rate, smaller is better; None for a training that diverged."""


@dataclass(frozen=True)
class SearchState:
    """Where a search is.

    Args:
        grid: Every learning rate tried, in increasing order.
        missing: Rung and learning rate of the trainings that are needed next; empty if the search is finished.
        best: The best learning rate, once the search is finished.
    """

    grid: tuple[float, ...]
    missing: tuple[tuple[int, float], ...] = ()
    best: float | None = None


def default_rates(centre: float) -> tuple[float, ...]:
    """Five learning rates, half a decade apart, around the centre.

    Examples:
        >>> default_rates(1e-3)
        (0.0001, 0.00032, 0.001, 0.0032, 0.01)
    """
    return tuple(_rounded(centre * HALF_DECADE**k) for k in range(-2, 3))


def checked_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """The learning rates in increasing order.

    Raises:
        UsageError: If there is none, or one is not positive or listed twice.
    """
    for rate in rates:
        expect_number("a learning rate", rate, 0, above=True)
    if not rates or len(set(rates)) != len(rates):
        raise UsageError("rates must list at least one learning rate, each once.")
    return tuple(sorted(map(float, rates)))


def search_state(rates: Sequence[float], scores: Scores) -> SearchState:
    """Where the search over some learning rates is, given the scores so far.

    Args:
        rates: The learning rates tried first, in increasing order; a single one is not searched.
        scores: Scores of the trainings that are finished.
    """
    grid = list(rates)
    if len(grid) == 1:
        return SearchState(tuple(grid), best=grid[0])
    while True:
        missing = [(0, rate) for rate in grid if (0, rate) not in scores]
        if missing:
            return SearchState(tuple(grid), tuple(missing))
        ranked = sorted(grid, key=lambda rate: _rank(scores[0, rate], rate))
        if _grow(grid, ranked[0], len(rates)):
            continue
        promoted = ranked[:PROMOTED]
        missing = [(1, rate) for rate in promoted if (1, rate) not in scores]
        if missing:
            return SearchState(tuple(grid), tuple(missing))
        best = min(promoted, key=lambda rate: _rank(scores[1, rate], rate))
        if not _grow(grid, best, len(rates)):
            return SearchState(tuple(grid), best=best)


def _rank(score: float | None, rate: float) -> tuple[bool, float, float]:
    """Order of scores: diverged trainings last, and the smaller of two equal learning rates first."""
    return (score is None, 0.0 if score is None else score, rate)


def _grow(grid: list[float], best: float, planned: int) -> bool:
    """Add a learning rate beyond the best if it is at an end of the grid and the grid may grow."""
    if len(grid) >= planned + MOST_ADDED or best not in (grid[0], grid[-1]):
        return False
    ratio = max(LEAST_RATIO, (grid[-1] / grid[0]) ** (1 / (len(grid) - 1)))
    if best == grid[0]:
        grid.insert(0, _rounded(best / ratio))
    else:
        grid.append(_rounded(best * ratio))
    return True


def _rounded(rate: float) -> float:
    """Round to two digits, so that results show short numbers."""
    return float(f"{rate:.2g}")
