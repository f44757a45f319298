"""The order in which pretraining trials run, decided from the recorded lines.

Each stage lists the trials that it still needs. Stages that train at the best learning rate wait for their grid
(:mod:`normplace.lab.studies.rate_grid`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from normplace.lab.studies.periln.pretraining import (
    EQUAL_RATE,
    FULL,
    LONG_PLACEMENTS,
    MAIN,
    NAMED,
    OTHERS,
    PART,
    SEEDS,
    STABILITY_RATES,
    STABILITY_SEEDS,
    VARIANTS,
    PretrainingTrial,
    Setting,
)
from normplace.lab.trials.per_seed import Records, config_values

from .rate_grid import best_of_complete_grid, missing_rates, pending_trials

Trials = Iterator[PretrainingTrial]


def settled_rate(records: Records, setting: Setting, placement: str) -> float | None:
    """The best learning rate of a placement's grid; None before the grid is complete."""
    fields = {"placement": placement, "tokens": setting.grid, "variant": MAIN, "seed": 0}
    return best_of_complete_grid(records, PART.name, **fields)


def _grid(*placements: str) -> Callable[[Records, Setting], Trials]:
    """The learning-rate grid of placements with one seed, rate by rate."""

    def trials(records: Records, setting: Setting) -> Trials:
        wanted = []
        for placement in placements:
            fields = {"placement": placement, "tokens": setting.grid, "variant": MAIN, "seed": 0}
            tried = config_values(records, PART.name, "learning_rate", **fields)
            rates = missing_rates(records, PART.name, **fields)
            wanted += [(len(tried) + number, placement, rate) for number, rate in enumerate(rates)]
        for _, placement, rate in sorted(wanted, key=lambda cell: cell[0]):
            yield setting.trial(placement, rate, 0, setting.grid)

    return trials


def _equal(_records: Records, setting: Setting) -> Trials:
    """Pre-LN and Peri-LN at the same high learning rate."""
    for placement in LONG_PLACEMENTS:
        yield setting.trial(placement, EQUAL_RATE, 0, setting.grid)


def _long(records: Records, setting: Setting) -> Trials:
    """Pre-LN and Peri-LN at their best learning rates, for long, seed by seed."""
    for seed in range(SEEDS):
        for placement in LONG_PLACEMENTS:
            if (rate := settled_rate(records, setting, placement)) is not None:
                yield setting.trial(placement, rate, seed, setting.long)


def _seeds(records: Records, setting: Setting) -> Trials:
    """More seeds of Pre-LN and Peri-LN, at all rates of both grids; those that most claims are about come first."""
    main = {"tokens": setting.grid, "variant": MAIN, "seed": 0}
    best = [settled_rate(records, setting, placement) for placement in LONG_PLACEMENTS]
    if None in best:
        return
    rates = {
        rate
        for placement in LONG_PLACEMENTS
        for rate in config_values(records, PART.name, "learning_rate", placement=placement, **main)
    }
    for rate in sorted(rates, key=lambda rate: (rate not in best, rate != EQUAL_RATE, rate)):
        for seed in range(SEEDS):
            for placement in LONG_PLACEMENTS:
                yield setting.trial(placement, rate, seed, setting.grid)


def _other_seeds(records: Records, setting: Setting) -> Trials:
    """More seeds of the other placements, at their best learning rates."""
    for seed in range(1, SEEDS):
        for placement in (*NAMED[2:], *OTHERS):
            if (rate := settled_rate(records, setting, placement)) is not None:
                yield setting.trial(placement, rate, seed, setting.grid)


def _stability(_records: Records, setting: Setting) -> Trials:
    """Short runs at high learning rates, to count divergences."""
    for rate in STABILITY_RATES:
        for seed in range(STABILITY_SEEDS):
            for placement in LONG_PLACEMENTS:
                yield setting.trial(placement, rate, seed, setting.short)


def _ablations(records: Records, setting: Setting) -> Trials:
    """Every variant at the best learning rate of its placement."""
    for seed in range(SEEDS):
        for variant, placements in VARIANTS.items():
            for placement in placements:
                rate = settled_rate(records, setting, placement)
                if variant != MAIN and rate is not None:
                    yield setting.trial(placement, rate, seed, setting.grid, variant)


STAGES: dict[str, Callable[[Records, Setting], Trials]] = {
    "grid": _grid(*NAMED[:2]),
    "equal": _equal,
    "long": _long,
    "grid-named": _grid(*NAMED[2:]),
    "seeds": _seeds,
    "grid-others": _grid(*OTHERS),
    "stability": _stability,
    "other-seeds": _other_seeds,
    "ablations": _ablations,
}
"""Stages in their order. All compare networks of the same data order, seed by seed."""


def pending(records: Records, setting: Setting = FULL, stages: Sequence[str] = ()) -> list[PretrainingTrial]:
    """The trials to run next; see :func:`pending_trials`."""
    fields = ("placement", "learning_rate", "seed", "tokens", "variant")
    return pending_trials(STAGES, records, setting, stages, PART.name, fields)
