"""What claims and figures read from the lines: every placement at its own best learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from normplace.lab.studies.periln import growth
from normplace.lab.studies.periln.training import UNIFORM
from normplace.lab.trials.claims import Values, by_seed, pick
from normplace.lab.trials.results import TrialRecord


def rates(lines: Sequence[TrialRecord], size: str) -> list[float]:
    """The learning rates tried at a size, in order."""
    return sorted({line.config["learning_rate"] for line in pick(lines, "training", size=size)})


def at_rate(lines: Sequence[TrialRecord], size: str, placement: str, rate: float | None) -> list[TrialRecord]:
    """The trials of one placement at one rate, one for each seed."""
    return pick(lines, "training", size=size, placement=placement, learning_rate=rate)


def cost(line: TrialRecord, name: str = "bits_per_byte") -> float:
    """Bits per byte of a trial; those of a blind guess where they are worse or not finite."""
    value = line.metrics.get(name)
    return UNIFORM if value is None or not math.isfinite(value) else min(value, UNIFORM)


def best_rate(lines: Sequence[TrialRecord], size: str, placement: str) -> float | None:
    """The rate with the lowest mean over seeds on the choosing half; None without lines."""
    means = {}
    for rate in rates(lines, size):
        if found := at_rate(lines, size, placement, rate):
            means[rate] = fmean(cost(line, "choosing_bits") for line in found)
    return min(means, key=lambda rate: means[rate], default=None)


def interior(lines: Sequence[TrialRecord], size: str, placements: Sequence[str]) -> Values:
    """By seed, 1 if the best rate of every one of the placements has tried rates on both sides of it, else 0."""
    tried = rates(lines, size)
    chosen = [best_rate(lines, size, placement) for placement in placements]
    seeds = {line.seed for placement in placements for line in best_lines(lines, size, placement)}
    if not tried or None in chosen:
        return {}
    return dict.fromkeys(seeds, float(all(rate not in (tried[0], tried[-1]) for rate in chosen)))


def some_interior(lines: Sequence[TrialRecord], size: str, placements: Sequence[str]) -> Values:
    """By seed, 1 if the best rate of at least one of the placements has tried rates on both sides of it, else 0."""
    each = [interior(lines, size, (placement,)) for placement in placements]
    return {seed: max(values.get(seed, 0.0) for values in each) for seed in set().union(*each)}


def tokens(lines: Sequence[TrialRecord], size: str) -> Values:
    """Bytes that a trial reads in training, by seed."""
    found = pick(lines, "training", size=size)
    return {line.seed: line.config["steps"] * line.config["batch_size"] * line.config["context"] for line in found}


def equal_rate_ratio(lines: Sequence[TrialRecord], size: str, name: str, ours: str, theirs: str, base: float) -> Values:
    """The logarithm of the ratio of a metric of two placements, both at the highest rate tried, by seed."""
    highest = max(rates(lines, size), default=None)
    one, other = (by_seed(at_rate(lines, size, placement, highest), name) for placement in (ours, theirs))
    return {seed: growth.log_ratio(one[seed], other[seed], base) for seed in one if seed in other}


def best_lines(lines: Sequence[TrialRecord], size: str, placement: str) -> list[TrialRecord]:
    """The trials of one placement at its own best rate."""
    return at_rate(lines, size, placement, best_rate(lines, size, placement))


def best(lines: Sequence[TrialRecord], size: str, placement: str, name: str) -> Values:
    """A metric at the placement's own best rate, by seed."""
    return by_seed(best_lines(lines, size, placement), name)


def less(lines: Sequence[TrialRecord], size: str, name: str, ours: str, theirs: str) -> Values:
    """A metric of one placement less that of another, each at its own best rate, by seed."""
    one, other = (best(lines, size, placement, name) for placement in (ours, theirs))
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


def log_ratio(lines: Sequence[TrialRecord], size: str, name: str, ours: str, theirs: str, base: float) -> Values:
    """The logarithm of the ratio of a metric of two placements, each at its own best rate, by seed."""
    one, other = (best(lines, size, placement, name) for placement in (ours, theirs))
    return {seed: growth.log_ratio(one[seed], other[seed], base) for seed in one if seed in other}


def magnitude(lines: Sequence[TrialRecord], size: str, placement: str, name: str) -> Values:
    """The magnitude of a metric at the placement's own best rate, by seed."""
    return {seed: abs(value) for seed, value in best(lines, size, placement, name).items()}


def sensitivity(lines: Sequence[TrialRecord], size: str, placement: str) -> Values:
    """By how many bits per byte the rates that were tried miss the best of them on average, by seed."""
    by_rate = [at_rate(lines, size, placement, rate) for rate in rates(lines, size)]
    costs = [{line.seed: cost(line) for line in found} for found in by_rate if found]
    seeds = set.intersection(*map(set, costs)) if costs else set()
    return {seed: fmean(each[seed] for each in costs) - min(each[seed] for each in costs) for seed in seeds}


def sensitivity_less(lines: Sequence[TrialRecord], size: str, ours: str, theirs: str) -> Values:
    """The sensitivity to the rate of one placement less that of another, by seed."""
    one, other = (sensitivity(lines, size, placement) for placement in (ours, theirs))
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


def spread_beyond_twice(lines: Sequence[TrialRecord], size: str, wide: str, narrow: str) -> Values:
    """How far a seed's bits per byte are from their median, less twice the same of another placement, by seed."""
    away = []
    for placement in (wide, narrow):
        values = best(lines, size, placement, "bits_per_byte")
        middle = median(values.values()) if values else math.nan
        away.append({seed: abs(value - middle) for seed, value in values.items()})
    return {seed: away[0][seed] - 2 * away[1][seed] for seed in away[0] if seed in away[1]}


def rates_differ(lines: Sequence[TrialRecord], size: str, placements: Sequence[str]) -> Values:
    """By seed, 1 if different rates are best for the placements, else 0."""
    chosen: dict[int, set[float]] = {}
    for placement in placements:
        by_seeds: dict[int, list[TrialRecord]] = {}
        for line in pick(lines, "training", size=size, placement=placement):
            by_seeds.setdefault(line.seed, []).append(line)
        for seed, found in by_seeds.items():
            lowest = min(found, key=lambda line: cost(line, "choosing_bits"))
            chosen.setdefault(seed, set()).add(lowest.config["learning_rate"])
    return {seed: float(len(found) > 1) for seed, found in chosen.items()}
