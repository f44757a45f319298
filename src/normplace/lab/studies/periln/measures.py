"""Measures at the best learning rate of a variant, and of its sensitivity to the learning rate.

A variant is a set of configuration fields, such as size and placement. Its best learning rate has the lowest mean loss
over seeds on one half of the validation text; scores are measured on the other half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from normplace.lab.studies.rate_grid import best_rate, loss
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, config_values, measure, pick
from normplace.lab.trials.results import TrialRecord


def best_records(records: Records, part: str, **variant: object) -> list[TrialRecord]:
    """The records of a variant at its best learning rate."""
    return pick(records, part, learning_rate=best_rate(records, part, **variant), **variant)


@measure
def at_best_rate(records: Records, part: str, name: str, **variant: object) -> PerSeed:
    """A metric of a variant at its best learning rate."""
    return PerSeed.of(best_records(records, part, **variant), name)


@measure
def at_highest_rate(records: Records, part: str, name: str, *, size: str, placement: str) -> PerSeed:
    """A metric at the highest learning rate that any placement of a size was trained with."""
    highest = max(config_values(records, part, "learning_rate", size=size), default=None)
    return PerSeed.of(pick(records, part, size=size, placement=placement, learning_rate=highest), name)


@measure
def interior(records: Records, part: str, **variant: object) -> PerSeed:
    """1 if lower and higher learning rates than the best one were tried, else 0."""
    rates = config_values(records, part, "learning_rate", **variant)
    best = best_rate(records, part, **variant)
    return PerSeed.of(best_records(records, part, **variant), lambda record: float(best not in (rates[0], rates[-1])))


def every(measures: Iterable[Measure]) -> Measure:
    """1 for a seed if all measures are 1, else 0; no values if a measure has none."""
    first, *rest = measures
    return first.map(lambda *values: min(values), *rest)


@measure
def some(records: Records, measures: Iterable[Measure]) -> PerSeed:
    """1 for a seed if at least one measure is 1, else 0; measures without values are left out."""
    return PerSeed.over((values for measure in measures if (values := measure(records))), max)


@measure
def rate_sensitivity(records: Records, part: str, **variant: object) -> PerSeed:
    """Mean loss over the learning rates tried minus the lowest loss."""
    rates = config_values(records, part, "learning_rate", **variant)
    losses = (PerSeed.of(pick(records, part, learning_rate=rate, **variant), loss) for rate in rates)
    return PerSeed.over(losses, lambda values: fmean(values) - min(values))


@measure
def distance_from_median(records: Records, part: str, name: str, **variant: object) -> PerSeed:
    """Distance of a seed's metric from the median over seeds, at the best learning rate."""
    values = at_best_rate(part, name, **variant)(records)
    return abs(values - values.median())


@measure
def best_rates_differ(records: Records, part: str, variants: Sequence[dict[str, object]]) -> PerSeed:
    """1 for a seed in which variants have different best learning rates, else 0."""
    rates = (_best_rates(pick(records, part, **variant)) for variant in variants)
    return PerSeed.over((values for values in rates if values), lambda values: float(len(set(values)) > 1))


def _best_rates(records: Records) -> PerSeed:
    """The best learning rate of each seed."""
    by_seed: dict[int, list[TrialRecord]] = {}
    for record in records:
        by_seed.setdefault(record.seed, []).append(record)
    best = {seed: min(own, key=lambda record: loss(record, "choosing_bits")) for seed, own in by_seed.items()}
    return PerSeed({seed: record.config["learning_rate"] for seed, record in best.items()})
