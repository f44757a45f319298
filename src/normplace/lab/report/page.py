"""Pages of the lab: the report of result files, and the layout that it shares with the page of a benchmark."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from normplace._shared import html_page
from normplace._shared.output import write_atomic
from normplace.lab.report import claim_table, text
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.figure import FigureView
from normplace.lab.report.notes import fold
from normplace.lab.report.section import Section
from normplace.lab.trials.claims import Judgement, Verdict, judge_all
from normplace.lab.trials.results import translate_study_errors
from normplace.lab.trials.study import Figure
from normplace.lab.trials.verdicts import counts_text, multiplicity

_PACKAGE = "normplace.lab.report"


class StudyView:
    """What the templates show of one study.

    Args:
        section: Its results.
        anchor: Its id in the page.
        renderer: Renders the charts.
    """

    def __init__(self, section: Section, anchor: str, renderer: ChartRenderer) -> None:
        self.section, self.anchor = section, anchor
        records = section.successful
        with translate_study_errors(section.source):
            self.judgements = judge_all(section.study.claims, records)
            figures: Sequence[Figure] = section.study.figures(records) if records else ()
        self.shared_notes, notes = fold([claim.note for claim in section.study.claims])
        self.claims = list(zip(self.judgements, notes, strict=True))
        self.figures = [
            FigureView(figure, f"{anchor}-figure-{n}", section.source, renderer)
            for n, figure in enumerate(figures, start=1)
        ]


def write_report(sections: Sequence[Section], path: Path) -> None:
    """Write the report atomically: a reader of ``path`` sees the old page or the new one.

    Args:
        sections: The studies, in the order of the page.
        path: The HTML file; its folder is created if missing.

    Raises:
        UsageError: If it cannot be written, or a chart cannot be rendered.
    """
    write_atomic(path, render_report(sections))


def render_report(sections: Sequence[Section]) -> str:
    """Render the report.

    Args:
        sections: The studies, in the order of the page.

    Raises:
        UsageError: If a chart cannot be rendered.
    """
    with ChartRenderer() as renderer:
        studies = [StudyView(section, f"study-{n}", renderer) for n, section in enumerate(sections, start=1)]
        judgements: list[Judgement] = [judgement for study in studies for judgement in study.judgements]
        verdicts = Counter(judgement.verdict for judgement in judgements)
        return render_page(
            "report.html",
            command="normplace report",
            studies=studies,
            judgements=judgements,
            totals={verdict: verdicts[verdict] for verdict in Verdict if verdicts[verdict]},
            trials=sum(len(section.records) for section in sections),
            newest=max((section.newest for section in sections), default=""),
        )


def render_page(template: str, *, command: str, **values: Any) -> str:
    """Render a template that extends ``layout.html``.

    Args:
        template: Its file name.
        command: The command that makes the page, which is its title.
        **values: Variables of the template.
    """
    environment = html_page.environment(_PACKAGE)
    environment.filters.update(
        count=text.count,
        cite=text.cite,
        number=text.number,
        when=text.when,
        counts_text=counts_text,
        outcome=claim_table.outcome,
        remark=claim_table.remark,
        verdict_look=claim_table.verdict_look,
    )
    environment.tests["finite"] = math.isfinite
    environment.globals["multiplicity"] = multiplicity
    script = _resource("script.js")
    return html_page.render(
        _PACKAGE,
        template,
        command=command,
        policy=html_page.content_policy(script),
        style=Markup(_resource("style.css")),
        script=Markup(script),
        **values,
    )


def _resource(name: str) -> str:
    return files(_PACKAGE).joinpath("templates", name).read_text(encoding="utf-8")
