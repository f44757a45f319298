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
from normplace.lab.report import claim_look, text
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.section import Section
from normplace.lab.report.study_view import Anchors, StudyView
from normplace.lab.trials.claims import Verdict
from normplace.lab.trials.verdicts import FUNCTIONAL_CHECK, counts_text, multiplicity, states_text

_PACKAGE = "normplace.lab.report"
_SCRIPTS = ("figures.js", "tips.js", "filter.js", "views.js")
_STYLES = ("page.css", "figures.css", "report.css")
_RESERVED = ("overview", "claims", "contents", "tip")
"""Ids of the page itself."""


def write_report(sections: Sequence[Section], path: Path) -> None:
    """Write the report atomically: a reader of ``path`` sees the old page or the new one.

    Raises:
        UsageError: If it cannot be written, or a chart cannot be rendered.
    """
    write_atomic(path, render_report(sections))


def render_report(sections: Sequence[Section]) -> str:
    """Render the report; without vl-convert its figures are tables.

    Raises:
        UsageError: If a chart cannot be rendered.
    """
    by_study: dict[str, list[Section]] = {}
    for section in sections:
        by_study.setdefault(section.study.name, []).append(section)
    anchors = Anchors()
    for name in _RESERVED:
        anchors(name)
    with ChartRenderer() as renderer:
        studies = [StudyView(group, anchors, renderer) for group in by_study.values()]
        judgements = [view.judgement for study in studies for view in study.claims]
        return render_page(
            "report.html",
            command="normplace report",
            title=_title(studies),
            studies=studies,
            judgements=judgements,
            totals=Counter(judgement.verdict for judgement in judgements),
            trials=sum(len(section.records) for section in sections),
            newest=max((section.newest for section in sections), default=""),
            charts_installed=renderer.installed,
        )


def _title(studies: Sequence[StudyView]) -> str:
    """The question of the project, unless the report has studies of the user."""
    if not any(study.own for study in studies):
        return "Where should the normalization sit?"
    return studies[0].study.title if len(studies) == 1 else f"Results of {len(studies)} studies"


def render_page(template: str, *, command: str, title: str, **values: Any) -> str:
    """Render a template that extends ``layout.html``."""
    environment = html_page.environment(_PACKAGE)
    environment.filters.update(
        count=text.count,
        cite=text.cite,
        number=text.number,
        when=text.when,
        counts_text=counts_text,
        states_text=states_text,
        outcome=claim_look.outcome,
        remark=claim_look.remark,
        verdict_look=claim_look.verdict_look,
    )
    environment.tests["finite"] = math.isfinite
    environment.globals.update(multiplicity=multiplicity, Verdict=Verdict, FUNCTIONAL_CHECK=FUNCTIONAL_CHECK)
    script = "\n".join(map(_resource, _SCRIPTS))
    return html_page.render(
        _PACKAGE,
        template,
        command=command,
        title=title,
        policy=html_page.content_policy(script),
        style=Markup("\n".join(map(_resource, _STYLES))),
        script=Markup(script),
        **values,
    )


def _resource(name: str) -> str:
    return files(_PACKAGE).joinpath("templates", name).read_text(encoding="utf-8")
