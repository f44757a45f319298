"""The page: what the parts stand in, and how it reaches the disk."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from normplace._shared.output import write_atomic
from normplace._shared.page_policy import content_policy
from normplace.lab.report.claimtable import claim_table, judgements, totals
from normplace.lab.report.drawings import Drawings
from normplace.lab.report.markup import Html, count, join, tag
from normplace.lab.report.section import Section, chart_requests, study_section, when
from normplace.lab.trials.claims import Judgement
from normplace.lab.trials.results import fitting
from normplace.lab.trials.study import Figure

_ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
    "<rect width='16' height='16' rx='3' fill='#2f7fc1'/>"
    "<path d='M2 8h3m6 0h3M5 5h6v6H5z' fill='none' stroke='#fff' stroke-width='1.6'/></svg>"
)


def write_report(sections: Sequence[Section], path: Path) -> None:
    """Write the report; a reader of ``path`` sees the old page or the new one, never a part.

    Args:
        sections: The studies, in the order of the page.
        path: The HTML file; its folder is made when missing.

    Raises:
        UsageError: If it cannot be written, or a chart cannot be drawn.
    """
    write_atomic(path, render_page(sections))


def render_page(sections: Sequence[Section]) -> str:
    """The report as text.

    Args:
        sections: The studies, in the order of the page.
    """
    judged: list[list[Judgement]] = []
    for section in sections:
        with fitting(section.source):
            judged.append(judgements(section))
    claims = tag(
        "section",
        tag("h2", "Claims", id="claims-title"),
        claim_table(sections, judged) if sections else tag("p", "There are no results to report."),
        id="claims",
        aria_labelledby="claims-title",
    )
    with Drawings() as drawings:
        figures: list[Sequence[Figure]] = []
        for section in sections:
            with fitting(section.source):
                figures.append(section.study.figures(section.done) if section.done else ())
            for figure in figures[-1]:
                drawings.start(chart_requests(figure))
        studies = [
            study_section(section, f"study-{n}", shown, drawings)
            for n, (section, shown) in enumerate(zip(sections, figures, strict=True), start=1)
        ]
    return document(
        "normplace report",
        tag("a", "Skip to the claims", href="#claims", class_="skip"),
        _header(sections, judged),
        tag("main", claims, *studies),
    )


def document(command: str, *children: Html) -> str:
    """A whole page as text, with the style and the script that all pages share.

    Args:
        command: What makes it, which is its title.
        *children: What stands on it.
    """
    script = _resource("script.js")
    body = tag(
        "body",
        *children,
        tag("footer", tag("p", "Made by ", tag("code", command), ". The page needs no network.")),
        tag("div", id="tip", aria_hidden="true", hidden=True),
        tag("script", Html(script)),
    )
    return "<!doctype html>\n" + tag("html", _head(command, script), "\n", body, lang="en") + "\n"


def _head(title: str, script: str) -> Html:
    icon = "data:image/svg+xml;base64," + base64.b64encode(_ICON.encode()).decode()
    return tag(
        "head",
        Html('<meta charset="utf-8">'),
        _void("meta", http_equiv="Content-Security-Policy", content=content_policy(script)),
        _void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _void("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        _void("link", rel="icon", href=icon),
        tag("style", Html(_resource("style.css"))),
    )


def _header(sections: Sequence[Section], judged: Sequence[Sequence[Judgement]]) -> Html:
    lines = [line for section in sections for line in section.lines]
    n = sum(len(found) for found in judged)
    newest = max((line.finished for line in lines), default="")
    lead = (
        f"{count(n, 'claim')} about where normalization sits in a network, of papers and our own, set against "
        f"what was measured here in {count(len(lines), 'trial')}. Each claim, its measure and its threshold were "
        "declared before the runs; the claim's note states where pilots shaped them and what was changed after the "
        "results were known. The verdicts are computed from the result lines: a check passes when its 95% confidence "
        "interval clears the threshold, and is void unless its gates, such as a baseline that learned its task, hold."
    )
    dated = [" Newest result: ", when(newest), "."] if newest else []
    return tag(
        "header",
        tag("p", "normplace report", class_="eyebrow"),
        tag("h1", "Where should the normalization sit?"),
        tag("p", join([lead, *dated]), class_="lead"),
        totals(judged) if n else "",
    )


def _void(name: str, /, **attributes: str) -> Html:
    """An element that has no end."""
    return Html(tag(name, **attributes).removesuffix(f"</{name}>"))


def _resource(name: str) -> str:
    return files("normplace.lab.report").joinpath(name).read_text(encoding="utf-8")
