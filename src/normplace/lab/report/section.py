"""One study in the report: how it was run, what failed, its figures and the numbers behind them."""

from __future__ import annotations

import json
import numbers
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from normplace.lab.report.charts import chart_request, render_chart
from normplace.lab.report.drawing import draw
from normplace.lab.report.markup import Html, cite, count, duration, escape, join, number, tag
from normplace.lab.trials.claims import SuccessfulLines
from normplace.lab.trials.environment import describe
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure, Study

MOST_ROWS = 3000
"""Rows shown of the numbers behind a figure; the page is for reading, the result file has them all."""


LAYOUTS = (("wide", False), ("narrow", True))
"""The layouts of a chart by name, and whether they are for a phone."""


@dataclass(frozen=True)
class Section:
    """What one result file says of one study.

    Args:
        study: The study.
        lines: The lines that count, one per trial.
        source: The file, for the reader who wants the lines themselves.
        damaged: Lines of the file that cannot be read and are left out.
    """

    study: Study
    lines: Sequence[TrialRecord]
    source: str
    damaged: int = 0

    @cached_property
    def done(self) -> SuccessfulLines:
        """The trials that succeeded."""
        return SuccessfulLines(self.lines)

    @property
    def failed(self) -> list[TrialRecord]:
        """The trials that did not."""
        return [line for line in self.lines if line.status != "ok"]

    @property
    def commands(self) -> list[str]:
        """What makes these lines; several when they were planned at several scales or with several overrides."""
        if not self.lines:
            return [shlex.join(["normplace", "study", self.study.name])]
        return _distinct(
            shlex.join(["normplace", "study", self.study.name, "--scale", line.scale, *_settings(line.overrides)])
            for line in self.lines
        )

    @property
    def machines(self) -> list[str]:
        """What the lines were computed on."""
        return _distinct(describe(line.hardware) for line in self.lines if line.hardware)

    @property
    def time(self) -> str:
        """Wall time of all trials, one after the other."""
        return duration(sum(line.seconds for line in self.lines))


def study_section(
    section: Section, anchor: str, figures: Sequence[Figure], drawings: Callable[[str], str] = draw
) -> Html:
    """The part of the page about one study.

    Args:
        section: The study and its lines.
        anchor: The id of the part, and the start of the ids in it.
        figures: The study's figures of these lines.
        drawings: What draws the charts.
    """
    study = section.study
    paragraphs = [tag("p", cite(text), class_="summary") for text in study.summary.split("\n\n")]
    return tag(
        "section",
        tag("h2", study.title, id=f"{anchor}-title"),
        tag("p", cite(study.paper), class_="paper"),
        *paragraphs,
        _facts(section),
        _failures(section.failed, section.lines) if section.failed else "",
        *(
            figure_section(figure, f"{anchor}-figure-{n}", section.source, drawings)
            for n, figure in enumerate(figures, start=1)
        ),
        id=anchor,
        class_="study",
        aria_labelledby=f"{anchor}-title",
    )


def when(finished: str) -> Html:
    """A result line's time for people."""
    try:
        moment = datetime.fromisoformat(finished)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return escape(finished)  # still what the file says, and a reader can make sense of it
    return tag("time", f"{moment:%-d %B %Y, %H:%M} UTC", datetime=finished)


def _facts(section: Section) -> Html:
    trials = f"{len(section.done)} finished, {len(section.failed)} failed"
    versions = _distinct(
        ", ".join(f"{name} {version}" for name, version in line.versions.items()) for line in section.lines
    )
    newest = max((line.finished for line in section.lines), default="")
    entries: list[tuple[str, Html]] = [
        ("Trials", escape(trials)),
        ("Time", escape(f"{section.time}, all trials added up")),
        ("Hardware", _stacked(section.machines)),
        ("Versions", _stacked(versions)),
        ("Newest result", when(newest)),
        ("Results", tag("code", section.source)),
    ]
    if section.damaged:
        entries.insert(1, ("Damaged lines", escape(f"{section.damaged}, left out")))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value or "–")) for name, value in entries), class_="facts")


def _stacked(texts: Sequence[str]) -> Html:
    return join((tag("span", text) for text in texts), Html("<br>"))


def _failures(failed: Sequence[TrialRecord], lines: Sequence[TrialRecord]) -> Html:
    """Each failed trial, named by what tells it from the others, with its error."""
    fields = {key for line in lines for key in line.config}
    told = [
        key for key in failed[0].config if key in fields and len({_text(line.config.get(key)) for line in lines}) > 1
    ]
    items: list[Html] = []
    for line in failed:
        name = ", ".join(f"{key}={_text(line.config.get(key))}" for key in told or line.config)
        error = (line.error or "no message").strip()
        last = error.splitlines()[-1]
        full = tag("details", tag("summary", "Whole message"), tag("pre", error, tabindex=0)) if last != error else ""
        items.append(tag("li", tag("code", name), tag("p", last), full))
    heading = tag("h3", count(len(failed), "failed trial"))
    return tag("div", heading, tag("ul", *items), class_="failures")


def chart_requests(figure: Figure) -> list[str]:
    """What draws the charts of a figure."""
    return [chart_request(figure.spec, figure.rows, narrow) for _, narrow in LAYOUTS]


def figure_section(figure: Figure, anchor: str, source: str, drawings: Callable[[str], str] = draw) -> Html:
    """A figure for a wide and for a narrow page, and its numbers.

    Args:
        figure: What to draw.
        anchor: Its id, and the start of the ids in it.
        source: Where the numbers come from.
        drawings: What draws the charts.
    """
    charts: list[Html] = []
    for layout, narrow in LAYOUTS:
        prefix = f"{anchor}-{layout}"
        svg = render_chart(figure.spec, figure.rows, alt=figure.alt, prefix=prefix, narrow=narrow, draw=drawings)
        charts.append(tag("div", Html(svg), class_=f"chart {layout}"))
    return tag(
        "figure",
        tag("h3", figure.title, id=f"{anchor}-title"),
        *charts,
        tag("figcaption", cite(figure.caption)),
        _numbers(figure, source),
        id=anchor,
        aria_labelledby=f"{anchor}-title",
    )


def _numbers(figure: Figure, source: str) -> Html:
    rows = figure.rows
    if not rows:
        return tag("p", "There are no numbers behind this figure yet.", class_="note")
    step = -(-len(rows) // MOST_ROWS)
    shown = rows[::step]
    note = f"One row in {step} of {len(rows)}; the lines in {source} have them all." if step > 1 else ""
    columns = list(rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(number(row.get(c)))}' for c in columns)}" for row in shown)
    # Cells carry no class, which would double the page; the table says which of its columns are text.
    samples = [next((row[c] for row in rows if row.get(c) is not None), None) for c in columns]
    texts = [f"text-{n}" for n, sample in enumerate(samples, start=1) if not isinstance(sample, numbers.Real)]
    table = tag(
        "table",
        tag("caption", f"Numbers behind “{figure.title}”"),
        tag("thead", tag("tr", *(tag("th", column, scope="col") for column in columns))),
        tag("tbody", Html(body)),
        class_=" ".join(["numbers", *texts]),
    )
    return tag(
        "details",
        tag("summary", f"Numbers: {count(len(rows), 'row')}"),
        tag("p", note, class_="note") if note else "",
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"Numbers behind {figure.title}"),
    )


def _settings(overrides: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in overrides.items():
        words += ["--set", f"{key}={tuple(value) if isinstance(value, list) else value}"]
    return words


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))
