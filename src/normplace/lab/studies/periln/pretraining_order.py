"""The order in which pretraining trials run, decided from the recorded lines.

Each stage lists the trials that it still needs. A learning-rate grid starts with three rates and is extended by a
factor of 2 until the best rate has a lower and a higher neighbor, or the range of rates ends. Stages that train at the
best rate wait for their grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from normplace.errors import unknown
from normplace.lab.studies.periln.measures import best_rate
from normplace.lab.studies.periln.pretraining import (
    FULL,
    LONG_PLACEMENTS,
    MAIN,
    NAMED,
    OTHERS,
    PART,
    RATES,
    SEEDS,
    STABILITY_RATES,
    STABILITY_SEEDS,
    VARIANTS,
    PretrainingTrial,
    Setting,
)
from normplace.lab.trials.per_seed import Records, config_values, pick

FIRST_RATES = (1e-3, 2e-3, 5e-4)
EQUAL_RATE = 4e-3
"""The high learning rate at which Pre-LN and Peri-LN are compared."""

Trials = Iterator[PretrainingTrial]


def next_rates(tried: Sequence[float], best: float | None) -> tuple[float, ...]:
    """The learning rates that a grid needs next; none if the best rate has two neighbors or the range ends.

    Args:
        tried: Learning rates with a result.
        best: The best of them; None if there is none.

    Example:
        >>> next_rates([], None), next_rates([5e-4, 1e-3, 2e-3], 2e-3), next_rates([5e-4, 1e-3, 2e-3], 1e-3)
        ((0.001, 0.002, 0.0005), (0.004,), ())
    """
    missing = tuple(rate for rate in FIRST_RATES if rate not in tried)
    if missing or best is None:
        return missing
    index = RATES.index(best)
    neighbors = RATES[max(index - 1, 0) : index + 2]
    return tuple(rate for rate in neighbors if rate not in tried)


def settled_rate(records: Records, setting: Setting, placement: str) -> float | None:
    """The best learning rate of a placement's grid; None before the grid is complete.

    Args:
        records: Successful records.
        setting: Sizes of the plan.
        placement: Name of the placement.
    """
    fields = {"placement": placement, "tokens": setting.grid, "variant": MAIN, "seed": 0}
    tried = config_values(records, PART.name, "learning_rate", **fields)
    best = best_rate(records, PART.name, **fields)
    return None if next_rates(tried, best) else best


def _grid(*placements: str) -> Callable[[Records, Setting], Trials]:
    """The learning-rate grid of placements with one seed, rate by rate."""

    def trials(records: Records, setting: Setting) -> Trials:
        wanted = []
        for placement in placements:
            fields = {"placement": placement, "tokens": setting.grid, "variant": MAIN, "seed": 0}
            tried = config_values(records, PART.name, "learning_rate", **fields)
            rates = next_rates(tried, best_rate(records, PART.name, **fields))
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
    """More seeds of Pre-LN and Peri-LN, at all rates of both grids."""
    main = {"tokens": setting.grid, "variant": MAIN, "seed": 0}
    if any(settled_rate(records, setting, placement) is None for placement in LONG_PLACEMENTS):
        return
    rates = {
        rate
        for placement in LONG_PLACEMENTS
        for rate in config_values(records, PART.name, "learning_rate", placement=placement, **main)
    }
    for seed in range(SEEDS):
        for rate in sorted(rates):
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
    """The trials to run next, in order; a finished trial can add further ones.

    Args:
        records: Successful records.
        setting: Sizes of the plan.
        stages: Names of stages; empty for all.

    Raises:
        UsageError: If a stage is unknown.
    """
    for name in stages:
        if name not in STAGES:
            raise unknown("stage", name, STAGES)
    wanted = [
        trial for name, stage in STAGES.items() if not stages or name in stages for trial in stage(records, setting)
    ]
    return [trial for trial in dict.fromkeys(wanted) if not _is_recorded(records, trial)]


def _is_recorded(records: Records, trial: PretrainingTrial) -> bool:
    names = ("placement", "learning_rate", "seed", "tokens", "variant")
    return bool(pick(records, PART.name, **{name: getattr(trial, name) for name in names}))
