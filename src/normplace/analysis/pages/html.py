"""An audit as one self-contained HTML page, every text of it escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from normplace._shared.page_policy import content_policy
from normplace.analysis.pages.drawing import drawing
from normplace.analysis.pages.text import block_lines, findings_line, headline, table
from normplace.analysis.results import Audit, Finding

STYLE = """
:root { color-scheme: light dark; --norm: #2a78d6; --error: #c0392b; --warning: #b9770e; --note: #5d6d7e }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-size: .85rem }
td, th { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8888 }
code, td:first-child { font-family: ui-monospace, monospace }
.scroll { overflow-x: auto }
svg { max-width: 100%; height: auto }
svg text { font: 13px system-ui, sans-serif; fill: currentColor }
svg .wire, svg .box { stroke: currentColor; fill: none }
svg .filled { fill: Canvas }
svg .small { font-size: 11px }
svg .norm { fill: var(--norm); fill-opacity: .25; stroke: var(--norm) }
section.finding { border-left: .3rem solid var(--note); padding-left: 1rem; margin: 1rem 0 }
section.error { border-color: var(--error) }
section.warning { border-color: var(--warning) }
section.finding h3 { margin: 0; font-size: 1rem }
section.finding p { margin: .2rem 0 }
"""


def page(audit: Audit) -> str:
    """The page as text."""
    title = f"Norms of {audit.model}"
    body = [
        _element("h1", title),
        _element("p", headline(audit)),
        *_blocks(audit),
        _element("h2", "Sites"),
        _table(*table(audit.sites)) if audit.sites else _element("p", "There is no norm in use."),
        _element("h2", "Findings"),
        _element("p", findings_line(audit.findings)),
        *(_finding(finding) for finding in audit.findings),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(content_policy())}">'
        f'<title>{escape(title)}</title><meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"


def _blocks(audit: Audit) -> Iterable[str]:
    if audit.blocks:
        yield _element("h2", "Blocks")
    seen = set()
    for (equation, described), block in zip(block_lines(audit.blocks), _first_of_each(audit), strict=True):
        yield f"<p><code>{escape(equation)}</code> {escape(described)}</p>"
        specs = tuple(arm.spec for arm in block.branches)
        if specs not in seen:
            seen.add(specs)
            yield drawing(block)


def _first_of_each(audit: Audit):
    first = {}
    for block in audit.blocks:
        first.setdefault((block.equation, block.kind), block)
    return first.values()


def _table(headings: Sequence[str], *body: Sequence[str]) -> str:
    head = "".join(_element("th", cell) for cell in headings)
    lines = "".join(f"<tr>{''.join(_element('td', cell) for cell in row)}</tr>" for row in body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _finding(finding: Finding) -> str:
    where = f"<p><code>{escape(', '.join(finding.where[:8]))}</code></p>" if finding.where else ""
    texts = (finding.evidence, finding.consequence, finding.remedy)
    title = _element("h3", f"{finding.severity}: {finding.rule}")
    body = "".join(_element("p", text) for text in texts)
    return f'<section class="finding {escape(finding.severity)}">{title}{where}{body}</section>'
