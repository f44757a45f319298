"""Which learning rates the grids of language models need next, and the order of trials that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from normplace.errors import expect_choice
from normplace.lab.studies.rate_grid import FIRST_RATES, RATES, best_rate
from normplace.lab.trials.per_seed import Records, config_values, pick

Setting = TypeVar("Setting")
Trial = TypeVar("Trial")


def next_rates(tried: Sequence[float], best: float | None) -> tuple[float, ...]:
    """The learning rates that a grid needs next; none if the best rate has two neighbors or the range ends.

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


def missing_rates(records: Records, part: str, **variant: object) -> tuple[float, ...]:
    """The learning rates that a variant's grid needs next; none if it is complete."""
    tried = config_values(records, part, "learning_rate", **variant)
    rates = next_rates(tried, best_rate(records, part, **variant))
    if rates or any(record.metrics.get("stuck") != 1 for record in pick(records, part, **variant)):
        return rates
    return tuple(rate for rate in RATES if rate < min(tried))[-1:]


def best_of_complete_grid(records: Records, part: str, **variant: object) -> float | None:
    """The best learning rate of a variant's grid; None before the grid is complete."""
    return None if missing_rates(records, part, **variant) else best_rate(records, part, **variant)


def pending_trials(
    stages: Mapping[str, Callable[[Records, Setting], Iterable[Trial]]],
    records: Records,
    setting: Setting,
    chosen: Sequence[str],
    part: str,
    fields: Sequence[str],
) -> list[Trial]:
    """The trials to run next, in order; a finished trial can add further ones.

    Raises:
        UsageError: If a stage is unknown.
    """
    for name in chosen:
        expect_choice("stage", name, stages)
    wanted = [
        trial for name, stage in stages.items() if not chosen or name in chosen for trial in stage(records, setting)
    ]
    return [
        trial
        for trial in dict.fromkeys(wanted)
        if not pick(records, part, **{name: getattr(trial, name) for name in fields})
    ]
