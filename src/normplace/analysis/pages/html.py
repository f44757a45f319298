"""An audit as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from normplace._shared.html_page import content_policy, render
from normplace.analysis.pages.drawing import BlockDiagram
from normplace.analysis.pages.text import block_lines, findings_line, headline, table
from normplace.analysis.results import Audit, ResidualBlock


def page(audit: Audit) -> str:
    """Render the page.

    Raises:
        UsageError: If Jinja2 is not installed.
    """
    return render(
        "normplace.analysis.pages",
        "audit.html",
        audit=audit,
        policy=content_policy(),
        headline=headline(audit),
        blocks=list(_blocks(audit)),
        sites=table(audit.sites) if audit.sites else [],
        findings_line=findings_line(audit.findings),
    )


def _blocks(audit: Audit) -> Iterator[tuple[str, str, BlockDiagram]]:
    """The equation, the description and the diagram of each kind of block."""
    first: dict[tuple[str, str], ResidualBlock] = {}
    for block in audit.blocks:
        first.setdefault((block.equation, block.kind), block)
    for (equation, description), block in zip(block_lines(audit.blocks), first.values(), strict=True):
        yield equation, description, BlockDiagram(block)
