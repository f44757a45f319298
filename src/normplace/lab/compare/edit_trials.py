"""The trials of a comparison by edit: reported seeds at the chosen learning rate, and the search that chose it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from normplace.errors import UsageError
from normplace.lab.compare.config import FINAL, SEARCH, SPEED
from normplace.lab.compare.statistics import Better, Scores
from normplace.lab.trials.record import TrialRecord

CLOSE = 2 * math.sqrt(2)
"""Two learning rates are close in the search if their trials differ by less than this many standard deviations over
seeds: twice the standard deviation of the difference of two trainings."""


@dataclass(frozen=True)
class CloseRate:
    """A learning rate that the search hardly distinguished from the chosen one, with one training of each.

    Attributes:
        learning_rate: The learning rate.
        margin: How much better than the chosen one it may be, in standard deviations over seeds.
    """

    learning_rate: float
    margin: float


@dataclass(frozen=True)
class EditTrials:
    """The trials of one edit.

    Attributes:
        edit: Name of the edit.
        learning_rate: The learning rate that is reported; None without finished trials.
        final: The reported trials at that learning rate, one per seed.
        search: The trials that chose the learning rate, and reported trials at other learning rates.
    """

    edit: str
    learning_rate: float | None
    final: tuple[TrialRecord, ...]
    search: tuple[TrialRecord, ...]

    @property
    def scores(self) -> Scores:
        """The reported number of each seed; None if the trial diverged."""
        return {record.seed: score(record, "report") for record in self.final}

    @property
    def diverged(self) -> int:
        """Number of reported trials that diverged."""
        return sum(value is None for value in self.scores.values())

    @property
    def mean(self) -> float:
        """Mean of the reported numbers of trials that did not diverge; NaN without such trials."""
        return _mean(self.scores.values())

    @property
    def spread(self) -> float:
        """Standard deviation of the reported numbers over seeds; NaN with fewer than two."""
        values = [value for value in self.scores.values() if value is not None]
        return stdev(values) if len(values) > 1 else math.nan

    @property
    def interior(self) -> bool | None:
        """Whether lower and higher learning rates than the reported one were tried; None if only one was."""
        tried = {record.config["learning_rate"] for record in (*self.search, *self.final)}
        if self.learning_rate is None or len(tried) < 2:
            return None
        return min(tried) < self.learning_rate < max(tried)

    @property
    def close_rate(self) -> CloseRate | None:
        """The second-best learning rate of the longest search trials if it is close to the chosen one, else None."""
        if any(record.part == FINAL for record in self.search):
            return None  # all seeds chose between the learning rates
        longest = max((record.config["steps"] for record in self.search), default=0)
        last = [record for record in self.search if record.config["steps"] == longest]
        scores = {record.config["learning_rate"]: score(record, "choose") for record in last}
        chosen = scores.pop(self.learning_rate, None) if self.learning_rate is not None else None
        others = {rate: value for rate, value in scores.items() if value is not None}
        finals = [value for record in self.final if (value := score(record, "choose")) is not None]
        if chosen is None or not others or len(finals) < 2 or not (spread := stdev(finals)):
            return None
        gaps = {rate: abs(value - chosen) / spread for rate, value in others.items()}
        rate = min(gaps, key=lambda rate: gaps[rate])
        return CloseRate(rate, CLOSE - gaps[rate]) if gaps[rate] < CLOSE else None

    def metric(self, name: str) -> float:
        """Mean of a metric over the reported trials that have it; NaN if none has."""
        return _mean(record.metrics.get(name) for record in self.final)


def by_edit(records: Iterable[TrialRecord], *, better: Better) -> dict[str, EditTrials]:
    """Group the finished trials by edit, in the order in which the edits first occur.

    If reported trials of an edit have several numbers of steps, the most steps count. If they then have several
    learning rates, the one with the best mean on the choosing split counts.

    Args:
        records: Result lines of one comparison; those that measured the speed are left out.
        better: Whether smaller or larger numbers are better.

    Raises:
        UsageError: If the lines belong to several tasks, or to something else than a comparison.
    """
    grouped: dict[str, list[TrialRecord]] = {}
    tasks: dict[str, None] = {}
    for record in records:
        if record.part == SPEED:
            continue
        if record.part not in {SEARCH, FINAL} or "edit" not in record.config:
            raise UsageError(f"a line of part {record.part!r} is not a trial of a comparison: pass its result file.")
        tasks[str(record.config.get("task"))] = None
        grouped.setdefault(record.config["edit"], []).append(record)
    if len(tasks) > 1:
        raise UsageError(f"the lines belong to the tasks {', '.join(tasks)}: pass the lines of one task.")
    finished = {edit: [record for record in own if record.status == "ok"] for edit, own in grouped.items()}
    return {edit: _edit_trials(edit, own, better) for edit, own in finished.items()}


def with_explosions(records: Sequence[TrialRecord], baseline: str, *, better: Better) -> tuple[TrialRecord, ...]:
    """The result lines, where a fresh training that ends far worse than the untrained baseline diverged.

    An edit whose untrained model explodes may improve and still end at a useless loss, such as 10⁵ times that of the
    baseline. The means of such numbers vary too much to be separated from anything. A training ends far worse if its
    loss is more than twice the first one of the baseline, and its measure is worse than that of the untrained baseline.
    Its curves are left out, beside which all others would be flat.
    """
    sign = 1 if better == "smaller" else -1
    untrained = [record for record in records if record.config.get("edit") == baseline]
    losses, measures = (_firsts(untrained, name) for name in ("loss", "held_out"))
    if not losses or not measures:
        return tuple(records)
    largest_loss = max(loss + abs(loss) for loss in losses)
    worst_measure = max(sign * measure for measure in measures)

    def exploded(record: TrialRecord) -> bool:
        loss, ends = record.metrics.get("train_loss"), record.series.get("held_out", [])
        if record.config.get("start") != "fresh" or record.metrics.get("can_rise") or loss is None or not ends:
            return False
        return loss > largest_loss and ends[-1] is not None and sign * ends[-1] > worst_measure

    diverged = {"choose": None, "report": None, "diverged": 1.0}
    return tuple(
        replace(record, metrics={**record.metrics, **diverged}, series={}) if exploded(record) else record
        for record in records
    )


def _firsts(records: Iterable[TrialRecord], name: str) -> list[float]:
    """The first number of a series of each record that has it."""
    firsts = (record.series.get(name, [None])[:1] for record in records)
    return [value for values in firsts for value in values if value is not None]


def score(record: TrialRecord, split: str) -> float | None:
    """The number of a trial on the split ``choose`` or ``report``; None if the trial diverged."""
    value = record.metrics.get(split)
    return None if record.metrics.get("diverged") or value is None or not math.isfinite(value) else value


def rate_scores(records: Iterable[TrialRecord]) -> dict[float, dict[int, float | None]]:
    """Numbers on the choosing split by learning rate and seed; None for trials that diverged."""
    scores: dict[float, dict[int, float | None]] = {}
    for record in sorted(records, key=lambda one: (one.config["learning_rate"], one.seed)):
        scores.setdefault(record.config["learning_rate"], {})[record.seed] = score(record, "choose")
    return scores


def _edit_trials(edit: str, records: Sequence[TrialRecord], better: Better) -> EditTrials:
    final = [record for record in records if record.part == FINAL]
    longest = max((record.config["steps"] for record in final), default=0)
    final = [record for record in final if record.config["steps"] == longest]
    rate = _best_rate(rate_scores(final), better)
    reported = {record.seed: record for record in final if record.config["learning_rate"] == rate}
    search = [record for record in records if record is not reported.get(record.seed)]
    return EditTrials(edit, rate, tuple(reported[seed] for seed in sorted(reported)), tuple(search))


def _best_rate(scores: Mapping[float, Scores], better: Better) -> float | None:
    """The learning rate with the fewest divergences, then with the best mean, then the lowest."""
    sign = 1 if better == "smaller" else -1

    def key(rate: float) -> tuple[float, float, float]:
        share = sum(value is None for value in scores[rate].values()) / len(scores[rate])
        mean = sign * _mean(scores[rate].values())
        return share, math.inf if math.isnan(mean) else mean, rate

    return min(scores, key=key, default=None)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else math.nan
