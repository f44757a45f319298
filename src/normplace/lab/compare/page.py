"""A comparison as one HTML page: the advice, the ranking, figures, the method, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from normplace._shared.output import write_atomic
from normplace.lab.compare.advice import TIED_MEANS
from normplace.lab.compare.config import FINAL
from normplace.lab.compare.figures import figures
from normplace.lab.compare.result import SIGNALS, Comparison
from normplace.lab.compare.table import deciding_seeds, difference_text, score_text, signal_text
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.figure import ChartView, FigureView
from normplace.lab.report.page import render_page
from normplace.lab.report.section import machines, versions
from normplace.lab.report.text import duration, number
from normplace.lab.trials.record import TrialRecord

VERDICT_STYLES = {"better": "good", "worse": "bad", "tied": "none", "baseline": "none"}
SIGNALS_MEAN = (
    "LR sensitivity is the mean loss above that of the best learning rate, spikes are jumps of the training loss in a "
    "thousand steps, and peak is the largest magnitude of the residual stream. Growth is the variance at its end over "
    "that at its start. Headroom is how often the peak can double before the format overflows. Evenness is the "
    "smallest gradient norm of a branch over the largest."
)
"""What the headings of the signals mean."""


@dataclass(frozen=True)
class Stage:
    """Trials of one length.

    Attributes:
        name: What they are for.
        steps: Steps of each.
        trials: Their number.
        rates: The learning rates.
        seeds: Number of seeds.
        time: Sum of their wall times.
    """

    name: str
    steps: int
    trials: int
    rates: str
    seeds: int
    time: str


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page atomically.

    Raises:
        UsageError: If it cannot be written, or a chart cannot be rendered.
    """
    write_atomic(path, render(comparison))


def render(comparison: Comparison) -> str:
    """Render the page; without vl-convert its figures are tables."""
    with ChartRenderer() as renderer:
        views = [
            FigureView(f"figure-{n}", [ChartView(figure, f"figure-{n}", renderer)])
            for n, figure in enumerate(figures(comparison), start=1)
        ]
        return render_page(
            "compare.html",
            command="normplace compare",
            title=f"Edits compared on {comparison.task}",
            comparison=comparison,
            advice=comparison.advice,
            score=comparison.measure,
            score_text=score_text,
            difference_text=difference_text,
            deciding_seeds=deciding_seeds,
            verdict_styles=VERDICT_STYLES,
            tied_means=TIED_MEANS,
            signals=_signals(comparison),
            signals_mean=SIGNALS_MEAN,
            figures=views,
            stages=stages(comparison.records),
            failed=[record for record in comparison.records if record.status == "failed"],
            time=duration(sum(record.seconds for record in comparison.records)),
            machines=machines(comparison.records),
            versions=versions(comparison.records),
            newest=max(record.finished for record in comparison.records),
            start=comparison.records[0].config.get("start", "fresh"),
            charts_installed=renderer.installed,
        )


def stages(records: Iterable[TrialRecord]) -> list[Stage]:
    """The trials by part and number of steps, in the order in which they run."""
    grouped: dict[tuple[bool, int], list[TrialRecord]] = {}
    for record in records:
        grouped.setdefault((record.part == FINAL, record.config["steps"]), []).append(record)
    return [
        Stage(
            name="reported seeds" if final else "search of learning rates",
            steps=steps,
            trials=len(own),
            rates=", ".join(number(rate, 3) for rate in sorted({record.config["learning_rate"] for record in own})),
            seeds=len({record.seed for record in own}),
            time=duration(sum(record.seconds for record in own)),
        )
        for (final, steps), own in sorted(grouped.items())
    ]


def _signals(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Title of each measured signal, and its number for each row."""
    columns = {title: [row.signals.get(name) for row in comparison.rows] for name, title in SIGNALS.items()}
    measured = {"LR sensitivity": [row.rate_sensitivity for row in comparison.rows], **columns}
    return [
        (title, [signal_text(value) for value in values])
        for title, values in measured.items()
        if any(value is not None for value in values)
    ]
