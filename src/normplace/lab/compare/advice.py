"""The advice of a comparison: one sentence that names an edit, and what the comparison does not show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normplace.lab.compare.config import FINAL
from normplace.lab.compare.edit_trials import EditTrials
from normplace.lab.compare.statistics import Better, Difference, Verdict
from normplace.lab.report.text import count, number, training_length
from normplace.lab.trials.record import TrialRecord

if TYPE_CHECKING:
    from normplace.lab.compare.result import Comparison, Row

SAME_START = 0.01
"""Largest relative difference of the measures of one untrained model, such as of two GPUs."""
TIED_MEANS = "'tied' means that these seeds cannot separate the two. It does not mean that they are equal."


@dataclass(frozen=True)
class Advice:
    """What to use; ``str()`` gives all its texts.

    Attributes:
        edit: The edit to use.
        sentence: Which edit to use, and why.
        limits: What the comparison does not show.
        warnings: What weakens it, such as trials that failed; one sentence each.
    """

    edit: str
    sentence: str
    limits: str
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.sentence, self.limits, *self.warnings))

    __repr__ = __str__  # what a notebook shows


def advise(comparison: Comparison) -> Advice:
    """Advise to use the highest-ranked edit that is better than the baseline, else the baseline."""
    rows, baseline, records = comparison.rows, comparison.baseline, comparison.records
    chosen = next((row for row in rows if row.verdict == Verdict.BETTER), None)
    sentence = _use(chosen, rows, comparison.better, comparison.measure) if chosen else _keep(rows, baseline)
    edit = chosen.edit if chosen else baseline
    limits = _limits(records, comparison.tokens_per_step)
    warnings = [*_close_rates(rows, comparison.trials()), *_warnings(rows, records, comparison.unfinished)]
    warnings += _other_starts(records)
    return Advice(edit, sentence, limits, tuple(warnings))


def seeds_text(difference: Difference) -> str:
    """How many seeds would separate a difference of the measured size, as text; empty if it is not known."""
    if difference.no_spread and difference.seeds_needed is not None:
        return f"at least {difference.seeds_needed} seeds or a finer measure"
    if difference.seeds_needed is not None:
        low, high = difference.seeds_range
        if low == high == difference.seeds_needed:
            return f"about {low} seeds"
        ends = f"{low or difference.seeds_needed} to {high or f'more than {difference.most_seeds}'}"
        return f"about {difference.seeds_needed} seeds ({ends})"
    return f"more than {difference.most_seeds} seeds" if difference.most_seeds and difference.deviation else ""


def _use(chosen: Row, rows: Sequence[Row], better: Better, measure: str) -> str:
    assert chosen.difference is not None
    baseline = next(row for row in rows if row.edit == chosen.difference.other)
    reason = f"Use {chosen.edit}: {_advantage(chosen, baseline, better, measure)}"
    if rows[0] is baseline:
        return f"{reason}; {baseline.edit} ranks first only by seeds that the two do not share."
    if chosen is not rows[0]:
        return f"{reason}; {rows[0].edit} ranks first, but the seeds cannot separate it from {chosen.difference.other}."
    others = [row for row in rows[1:] if row.edit != chosen.difference.other]
    # With other seeds, an edit that diverged may rank lower and still have better scores with the shared ones.
    tied = [row.edit for row in others if row.best_difference and row.best_difference.verdict is not Verdict.BETTER]
    if tied:
        return f"{reason}; the seeds cannot separate it from {_list(tied)}."
    return f"{reason}, and it is better than {_list([row.edit for row in others])}." if others else f"{reason}."


def _keep(rows: Sequence[Row], baseline: str) -> str:
    others = [row for row in rows if row.edit != baseline]
    if not others:
        return f"Only {baseline} was measured, so there is nothing to compare."
    if all(row.verdict == Verdict.WORSE for row in others):
        return f"Keep {baseline}: it is better than {_list([row.edit for row in others])}."
    first = rows[0]
    seeds = count(min(row.seeds for row in rows if row.edit in {first.edit, baseline}), "seed")
    if first.edit == baseline:
        return f"Keep {baseline}: it ranks first, and {seeds} did not show that another edit is better."
    assert first.difference is not None
    needed = seeds_text(first.difference)
    remedy = f"; {needed} would separate a difference of this size" if needed else ""
    if first.difference.no_spread and needed:
        same = f"{seeds} with the same difference do not measure how much it varies"
        return f"Keep {baseline}: {first.edit} ranks first, but {same}; {needed} would decide."
    return f"Keep {baseline}: {first.edit} ranks first, but {seeds} cannot separate the two{remedy}."


def _advantage(chosen: Row, baseline: Row, better: Better, measure: str) -> str:
    """The reason why an edit is better."""
    difference = chosen.difference
    assert difference is not None
    of_chosen = f", and {chosen.edit} with {chosen.diverged}" if chosen.diverged else ""
    diverged = f"{baseline.edit} diverged with {baseline.diverged} of {count(baseline.seeds, 'seed')}{of_chosen}"
    if not difference.low * difference.high > 0:
        return diverged
    ends = sorted((abs(difference.low), abs(difference.high)))
    relation = f"{number(abs(difference.estimate), 3)} {'lower' if difference.estimate < 0 else 'higher'}"
    interval = f"95% interval {number(ends[0], 3)} to {number(ends[1], 3)}, {count(difference.seeds, 'seed')}"
    if (difference.estimate < 0) != (better == "smaller"):
        return f"{diverged}, although the {measure} of {chosen.edit} is {relation} where neither diverged ({interval})"
    text = f"its {measure} is {relation} than that of {baseline.edit} ({interval})"
    return f"{text}, and {diverged}" if difference.other_diverged > difference.diverged else text


def _limits(records: Sequence[TrialRecord], tokens_per_step: int | None) -> str:
    final = [record for record in records if record.part == FINAL]
    steps = max(record.config["steps"] for record in final)
    start = "the given" if final[0].config.get("start") == "weights" else "fresh"
    return (
        f"This holds for this model and data, trained for {training_length(steps, tokens_per_step)} from "
        f"{start} weights. It does not show what other model sizes, longer training or other data would give."
    )


def _close_rates(rows: Sequence[Row], trials: Mapping[str, EditTrials]) -> Iterable[str]:
    """Edits that another learning rate, which the search hardly distinguished, may keep from being worse."""
    for row in rows:
        close = trials[row.edit].close_rate
        if close is not None and any(ahead < close.margin * row.spread for ahead in _lost_by(row, rows)):
            yield (
                f"The learning rate of {row.edit} is uncertain: the search trained {number(row.learning_rate, 3)} and "
                f"{number(close.learning_rate, 3)} once each, and they differ by less than seeds may. With "
                f"{number(close.learning_rate, 3)}, {row.edit} may not be worse: compare with that learning rate alone "
                "to check."
            )


def _lost_by(row: Row, rows: Sequence[Row]) -> Iterable[float]:
    """The least amount by which an edit is worse than others, for each verdict that follows from scores."""
    differences = [(other.difference, Verdict.BETTER) for other in rows if row.verdict == "baseline"]
    differences += [(row.difference, Verdict.WORSE), (row.best_difference, Verdict.BETTER)]
    for difference, lost in differences:
        if difference is not None and difference.verdict is lost and difference.low * difference.high > 0:
            yield min(abs(difference.low), abs(difference.high))


def _warnings(rows: Sequence[Row], records: Sequence[TrialRecord], unfinished: Sequence[str]) -> Iterable[str]:
    if edges := [row.edit for row in rows if row.interior is False]:
        yield f"The best learning rate of {_list(edges)} is the lowest or highest tried: a better one may lie beyond."
    if fixed := [row.edit for row in rows if row.interior is None]:
        yield f"Only one learning rate was tried with {_list(fixed)}: at others, the edits may rank differently."
    seeds = {record.config["edit"]: set[int]() for record in records}
    for record in records:
        if record.part == FINAL and record.status == "ok":
            seeds[record.config["edit"]].add(record.seed)
    if len({frozenset(own) for edit, own in seeds.items() if edit not in unfinished}) > 1:
        yield "The edits have different seeds; only seeds that two edits share are compared."
    if unfinished:
        yield f"No trial of {_list(unfinished)} is finished."
    if failed := [record for record in records if record.status == "failed"]:
        verb = "is" if len(failed) == 1 else "are"
        yield f"{count(len(failed), 'trial')} failed and {verb} left out: {failed[-1].failure}"


def _other_starts(records: Sequence[TrialRecord]) -> Iterable[str]:
    """Edits whose untrained model has other measures in trainings of the same seed."""
    starts: dict[tuple[str, int], list[float]] = {}
    for record in records:
        first = next(iter(record.series.get("held_out", [])), None)
        if record.status == "ok" and first is not None:
            starts.setdefault((record.config["edit"], record.seed), []).append(first)
    changed = [edit for (edit, _), own in starts.items() if not math.isclose(min(own), max(own), rel_tol=SAME_START)]
    if changed:
        yield (
            f"Trainings of {_list(list(dict.fromkeys(changed)))} with the same seed started from different held-out "
            "measures: the code or the data changed meanwhile, or a training changes what the next one starts from."
        )


def _list(names: Sequence[str]) -> str:
    """Names joined as in a sentence.

    >>> _list(["pre", "post", "peri"])
    'pre, post and peri'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
