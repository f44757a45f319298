"""Measures of the parts at the published size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from normplace.lab.studies.causalrn import generalization, opponents, published_ablation, published_copying
from normplace.lab.studies.causalrn.opponents import LENGTH, PAIRWISE, Opponent
from normplace.lab.studies.causalrn.published_ablation import Cell
from normplace.lab.studies.causalrn.published_size import BUDGET
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, config_values, measure, metric, pick
from normplace.lab.trials.results import TrialRecord

COPYING, ABLATION = published_copying.PART.name, published_ablation.PART.name
OPPONENTS, GENERALIZATION = opponents.PART.name, generalization.PART.name


@measure
def over_lengths(records: Records, reduce: Callable[[Sequence[float]], float], **fields: object) -> PerSeed:
    """The accuracy within the budget, reduced over all lengths by ``min`` or ``max``."""
    lengths = config_values(records, COPYING, "length")
    cells = (metric(COPYING, "string_in_budget", length=length, **fields)(records) for length in lengths)
    return PerSeed.over(cells, reduce)


@measure
def worst_lead(records: Records, **other: object) -> PerSeed:
    """The accuracy of the pairwise form minus that of another network, at the length where it is least."""

    def lead(length: int) -> PerSeed:
        pairwise, rival = (
            metric(COPYING, "string_in_budget", length=length, **fields)(records)
            for fields in ({"network": "pairwise"}, other)
        )
        return pairwise - rival

    return PerSeed.over(map(lead, config_values(records, COPYING, "length")), min)


def cell_metric(name: str, cell: Cell, **fields: object) -> Measure:
    """A metric of a cell of the ablation at the published size."""
    return metric(ABLATION, name, **cell._asdict(), **fields)


def chosen_rate(records: Records, opponent: Opponent) -> float | None:
    """The learning rate at which the first seed copies best, and then in the fewest steps; None without records."""
    trained = pick(records, OPPONENTS, **opponent._asdict(), length=LENGTH, seed=0)
    return max(trained, key=_success).config["learning_rate"] if trained else None


def _success(record: TrialRecord) -> tuple[float, float, float]:
    numbers = [record.metrics[name] or 0.0 for name in ("string_in_budget", "steps_to_copy", "character_in_budget")]
    return numbers[0], -numbers[1], numbers[2]


@measure
def opponent_metric(records: Records, name: str, opponent: Opponent, length: int = LENGTH) -> PerSeed:
    """A metric of a network at its better learning rate."""
    rate = chosen_rate(records, opponent)
    return metric(OPPONENTS, name, **opponent._asdict(), length=length, learning_rate=rate)(records)


@measure
def best_length(records: Records, opponent: Opponent) -> PerSeed:
    """The accuracy of a network within the budget at the length that it copies best."""
    lengths = config_values(records, OPPONENTS, "length")
    return PerSeed.over((opponent_metric("string_in_budget", opponent, n)(records) for n in lengths), max)


@measure
def lead_at_equal_time(records: Records, opponent: Opponent) -> PerSeed:
    """The accuracy of the pairwise form minus that of a network that trained as long as the former's whole budget.

    It is limited by the planned steps of the network. Only trainings on a GPU record times.
    """
    rate = chosen_rate(records, opponent)
    trained = pick(records, OPPONENTS, **opponent._asdict(), length=LENGTH, learning_rate=rate)
    limit = opponent_metric("step_seconds", PAIRWISE)(records) * float(BUDGET)
    reached = PerSeed(
        {record.seed: accuracy_after(record, limit[record.seed]) for record in trained if record.seed in limit}
    )
    return opponent_metric("string_in_budget", PAIRWISE)(records) - reached


def accuracy_after(record: TrialRecord, seconds: float) -> float:
    """String accuracy at the last evaluation within a training time; 0 before the first."""
    course = zip(record.series.get("seconds", ()), record.series["string"], strict=False)
    return next((value or 0.0 for when, value in reversed([*course]) if when is not None and when <= seconds), 0.0)
