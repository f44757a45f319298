"""A comparison as text for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from normplace._shared.text_table import text_table
from normplace.lab.compare.advice import TIED_MEANS, seeds_text
from normplace.lab.compare.result import SIGNALS
from normplace.lab.compare.statistics import Difference, Verdict
from normplace.lab.report.text import count, duration, number

if TYPE_CHECKING:
    from normplace.lab.compare.result import Comparison, Row


def comparison_text(comparison: Comparison, width: int | None = None) -> str:
    """Format the ranking, the signals, and the advice."""
    headings = ["edit", f"{comparison.measure} ± sd", f"minus {comparison.baseline} [95% interval]", "verdict"]
    headings += ["to decide", "diverged", "LR"]
    ranked = text_table(headings, [_ranked(row) for row in comparison.rows], width=width)
    names = [name for name in SIGNALS if any(name in row.signals for row in comparison.rows)]
    measured = text_table(
        ["edit", "LR sensitivity", *(SIGNALS[name] for name in names)],
        [
            [row.edit, signal_text(row.rate_sensitivity), *(signal_text(row.signals.get(name)) for name in names)]
            for row in comparison.rows
        ],
        right_from=1,
        width=width,
    )
    trials = count(len(comparison.records), "trial")
    time = duration(sum(record.seconds for record in comparison.records))
    advice = comparison.advice
    title = f"{comparison.task}: {count(len(comparison.rows), 'edit')}, {trials}, {time} of training"
    notes = [TIED_MEANS] if any(row.verdict == Verdict.TIED for row in comparison.rows) else []
    notes += comparison.notes
    return "\n\n".join([title, ranked, measured, "\n".join([advice.sentence, advice.limits, *advice.warnings, *notes])])


def signal_text(value: float | None) -> str:
    """Three digits, without an exponent below ten million.

    >>> signal_text(0.1234), signal_text(6921.7), signal_text(161432.0), signal_text(None)
    ('0.123', '6,920', '161,000', '–')
    """
    text = number(value, 3)
    return f"{float(text):,.0f}" if value is not None and 1e3 <= abs(value) < 1e7 else text


def score_text(row: Row) -> str:
    """Mean and standard deviation over seeds."""
    if not math.isfinite(row.score):
        return "–"
    return number(row.score) + (f" ± {number(row.spread, 2)}" if math.isfinite(row.spread) else "")


def difference_text(difference: Difference | None) -> str:
    """The estimate of a difference with its interval; empty without seeds."""
    if difference is None or not math.isfinite(difference.estimate):
        return ""
    has_interval = math.isfinite(difference.low)
    ends = f" [{_signed(difference.low)}, {_signed(difference.high)}]" if has_interval else " (no interval)"
    return _signed(difference.estimate) + ends


def deciding_seeds(row: Row) -> str:
    """Number of seeds that would decide a tie with the baseline; empty without a tie."""
    if row.difference is None or row.difference.verdict is not Verdict.TIED:
        return ""
    return seeds_text(row.difference) or ("equal with every seed" if row.difference.seeds > 1 else "more seeds")


def _signed(value: float) -> str:
    text = number(value, 3)
    return f"+{text}" if value > 0 else text


def _ranked(row: Row) -> list[str]:
    return [
        row.edit,
        score_text(row),
        difference_text(row.difference),
        row.verdict,
        deciding_seeds(row),
        f"{row.diverged} of {row.seeds}",
        number(row.learning_rate, 3),
    ]
