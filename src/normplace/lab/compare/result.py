"""The result of a comparison: a ranking with intervals, advice, a table, JSON and a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from normplace.errors import UsageError, expect_choice, unknown
from normplace.lab.compare.advice import Advice, advise
from normplace.lab.compare.edit_trials import EditTrials, by_edit, with_explosions
from normplace.lab.compare.edits import AS_IS
from normplace.lab.compare.sensitivity import rate_sensitivity
from normplace.lab.compare.statistics import Better, Difference, against_baseline, best_against_each, ranking
from normplace.lab.trials.record import TrialRecord

SIGNALS = {
    "spikes_per_1000": "spikes/1000",
    "stream_peak": "peak",
    "stream_growth": "growth",
    "fp16_headroom": "fp16 headroom",
    "bf16_headroom": "bf16 headroom",
    "gradient_evenness": "evenness",
    "step_ms": "ms/step",
    "memory_mb": "MB",
}
"""Metrics of the reported trials that a row averages over seeds, with their headings."""

DEFAULT_MEASURES = {"smaller": "loss", "larger": "score"}


@dataclass(frozen=True)
class Row:
    """One edit of a comparison.

    Attributes:
        rank: Position in the ranking, from 1.
        edit: Name of the edit.
        score: Mean of the reported number over the seeds that did not diverge; NaN if all did.
        spread: Its standard deviation over seeds; NaN with fewer than two.
        seeds: Number of reported seeds.
        diverged: Number of these that diverged.
        learning_rate: The learning rate that was chosen.
        interior: Whether lower and higher learning rates were tried; None if only one was.
        difference: The edit minus the baseline; None for the baseline.
        best_difference: The best edit minus this one; None for the best.
        rate_sensitivity: See :mod:`normplace.lab.compare.sensitivity`; None if it was not measured.
        signals: Means of the metrics :data:`SIGNALS` that were measured.
    """

    rank: int
    edit: str
    score: float
    spread: float
    seeds: int
    diverged: int
    learning_rate: float | None
    interior: bool | None
    difference: Difference | None
    best_difference: Difference | None
    rate_sensitivity: float | None
    signals: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``tied`` against the baseline, or ``baseline``."""
        return str(self.difference.verdict) if self.difference else "baseline"


@dataclass(frozen=True)
class Comparison:
    """Edits of a model compared on one task; ``str()`` gives a table.

    Attributes:
        task: Name of the task.
        better: Whether smaller or larger numbers are better.
        measure: Name of the reported number, such as "held-out bits per byte".
        baseline: The edit that the others are compared with.
        rows: The edits from best to worst.
        unfinished: Edits without a finished trial to report.
        records: The result lines.
        notes: Sentences about how it was run, such as which data was held out.
        tokens_per_step: Tokens of one training step, for language models.
    """

    task: str
    better: Better
    measure: str
    baseline: str
    rows: tuple[Row, ...]
    unfinished: tuple[str, ...]
    records: tuple[TrialRecord, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    tokens_per_step: int | None = None

    @classmethod
    def from_records(
        cls,
        records: Iterable[TrialRecord],
        *,
        better: Better = "smaller",
        measure: str | None = None,
        baseline: str | None = None,
        notes: Iterable[str] = (),
        tokens_per_step: int | None = None,
    ) -> Comparison:
        """Evaluate the result lines of a comparison.

        Args:
            records: Result lines of one task.
            better: Whether smaller or larger reported numbers are better.
            measure: What was measured on held-out data, such as "bits per byte".
            baseline: Name of the baseline; by default ``as-is`` if it was tried, else the first edit.
            notes: Sentences about how it was run.
            tokens_per_step: Tokens of one training step, for language models.

        Raises:
            UsageError: If no reported trial is finished, the lines belong to several tasks, or an argument is wrong.
        """
        expect_choice("value of better", better, DEFAULT_MEASURES)
        records = tuple(records)
        edits = by_edit(records, better=better)
        measured = {edit: trials for edit, trials in edits.items() if trials.final}
        if not measured:
            raise UsageError("no reported trial is finished: run the comparison to its end first.")
        if baseline is not None and baseline not in edits:
            raise unknown("baseline", baseline, edits)
        reference = baseline or (AS_IS if AS_IS in measured else next(iter(measured)))
        if reference not in measured:
            raise UsageError(f"the baseline {reference!r} has no finished trial: resume the comparison.")
        records = with_explosions(records, reference, better=better)
        measured = {edit: trials for edit, trials in by_edit(records, better=better).items() if trials.final}
        return cls(
            task=str(records[0].config.get("task", "")),
            better=better,
            measure=f"held-out {measure or DEFAULT_MEASURES[better]}",
            baseline=reference,
            rows=_rows(measured, reference, better),
            unfinished=tuple(edit for edit in edits if edit not in measured),
            records=records,
            notes=tuple(notes),
            tokens_per_step=tokens_per_step,
        )

    @property
    def best(self) -> str:
        """The edit that ranks first; whether the seeds separate it from the others is in ``rows``."""
        return self.rows[0].edit

    @property
    def winner(self) -> str:
        """The edit to use: the highest-ranked one that is better than the baseline, else the baseline."""
        return self.advice.edit

    @property
    def advice(self) -> Advice:
        """Which edit to use and why, and what the comparison does not show."""
        return advise(self)

    def row(self, edit: str) -> Row:
        """The row of an edit.

        Raises:
            UsageError: If the edit was not measured.
        """
        rows = {row.edit: row for row in self.rows}
        expect_choice("edit", edit, rows)
        return rows[edit]

    def trials(self) -> dict[str, EditTrials]:
        """The finished trials of each edit."""
        return by_edit(self.records, better=self.better)

    def __str__(self) -> str:
        from normplace.lab.compare.table import comparison_text

        return comparison_text(self)

    __repr__ = __str__  # what a notebook shows

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values, without the result lines; numbers that are not finite are None."""
        return {
            "task": self.task,
            "better": self.better,
            "measure": self.measure,
            "baseline": self.baseline,
            "best": self.best,
            "winner": self.winner,
            "advice": {**asdict(self.advice), "warnings": list(self.advice.warnings)},
            "rows": [{**_plain(asdict(row)), "verdict": row.verdict} for row in self.rows],
            "unfinished": list(self.unfinished),
            "notes": list(self.notes),
            "tokens_per_step": self.tokens_per_step,
            "trials": len(self.records),
            "seconds": round(sum(record.seconds for record in self.records), 3),
        }

    def page(self, path: str | Path) -> None:
        """Write the result as one HTML page that needs no network.

        Args:
            path: The file; its folder is created if missing.

        Raises:
            UsageError: If it cannot be written.
        """
        from normplace.lab.compare.page import write_page

        write_page(self, Path(path))


def _rows(edits: Mapping[str, EditTrials], baseline: str, better: Better) -> tuple[Row, ...]:
    scores = {edit: trials.scores for edit, trials in edits.items()}
    order = ranking(scores, better=better)
    differences = against_baseline(scores, baseline, better=better)
    best_differences = best_against_each(scores, order[0], better=better)
    sensitivities = rate_sensitivity(edits, better=better)
    return tuple(
        Row(
            rank=rank,
            edit=edit,
            score=edits[edit].mean,
            spread=edits[edit].spread,
            seeds=len(edits[edit].final),
            diverged=edits[edit].diverged,
            learning_rate=edits[edit].learning_rate,
            interior=edits[edit].interior,
            difference=differences.get(edit),
            best_difference=best_differences.get(edit),
            rate_sensitivity=sensitivities.get(edit),
            signals=_signals(edits[edit]),
        )
        for rank, edit in enumerate(order, start=1)
    )


def _signals(trials: EditTrials) -> dict[str, float]:
    means = {name: trials.metric(name) for name in SIGNALS}
    return {name: value for name, value in means.items() if math.isfinite(value)}


def _plain(value: Any) -> Any:
    """Convert to JSON values; None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
