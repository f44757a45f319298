"""An audit as text for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from normplace._shared.paint import Paint, unpainted
from normplace._shared.text_table import text_table
from normplace.analysis.results import Audit, Finding, ResidualBlock, Site, Unknown, in_order, pattern

WIDTH = 110
ROLES = {"error": "bad", "warning": "doubt", "note": "open"}
"""The colour of each severity."""


def report(audit: Audit, paint: Paint = unpainted, width: int = WIDTH) -> str:
    """The placement, the blocks, the sites and the findings."""
    headlines = textwrap.wrap(headline(audit), width, subsequent_indent="  ", break_long_words=False)
    lines = [*(paint(line, "heading") for line in headlines), ""]
    equations = block_lines(audit.blocks)
    longest = max((len(equation) for equation, _ in equations), default=0)
    lines += [f"  {equation:{longest}}   {description}" for equation, description in equations]
    lines += [""] if audit.blocks else []
    if audit.sites:
        headings, *body = table(audit.sites)
        first, *rest = text_table(headings, body).splitlines()
        lines += [paint(first, "heading"), *rest]
    lines += _unknown(audit.unknown, width)
    lines += [""] if lines[-1] else []
    lines += [paint(findings_line(audit.findings), "heading")]
    for finding in audit.findings:
        lines += _finding(finding, paint, width)
    return "\n".join(lines)


def headline(audit: Audit) -> str:
    """One sentence: placement, norms, blocks."""
    if not audit.sites:
        blocks = _count(len(audit.blocks), "residual block")
        return f"{audit.model}: no norm was found among {audit.operators} operators, and {blocks}."
    named = f"placement '{audit.placement}'" if audit.placement else "a placement without a published name"
    if not audit.blocks:
        named = "norms without a residual"
    slots = [site.slot for site in audit.sites]
    ends = [slot for slot in ("embedding", "final") if slot in slots]
    inner = in_order(slot.removeprefix("inner.") for slot in slots if slot.startswith("inner."))
    more = [f"{_article(ends[0])} norm"] if len(ends) == 1 else ["embedding and final norms"] if ends else []
    more += [f"inner norms ({', '.join(inner)})"] if inner else []
    with_more = f", with {' and '.join(more)}" if more else ""
    return (
        f"{audit.model}: {named}{with_more}; {_count(len(audit.sites), 'norm')} in use, "
        f"{_count(len(audit.blocks), 'residual block')}."
    )


def _article(slot: str) -> str:
    return f"an {slot}" if slot[0] in "aeiou" else f"a {slot}"


def _count(n: int, noun: str) -> str:
    return f"{n or 'no'} {noun}{'' if n == 1 else 's'}"


def block_lines(blocks: Sequence[ResidualBlock]) -> list[tuple[str, str]]:
    """Each distinct equation, and the blocks that have it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for block in blocks:
        groups.setdefault((block.equation, block.kind), []).append(block.module)
    return [
        (equation, f"{len(modules)} x {kind}, {folded(modules)}") for (equation, kind), modules in groups.items()
    ]  # fmt: skip


def folded(names: Iterable[str]) -> str:
    """The names, with one pattern for names that differ only in numbers."""
    patterns: Counter[str] = Counter()
    shown: dict[str, str] = {}
    for name in names:
        folded_name = pattern(name) or "the model"
        patterns[folded_name] += 1
        shown.setdefault(folded_name, name or "the model")
    return ", ".join(name if count > 1 else shown[name] for name, count in patterns.items())


def rows(sites: Sequence[Site]) -> list[tuple[str, ...]]:
    """The rows of the table of sites; norms whose names differ only in numbers share a row."""
    groups: dict[tuple[str, ...], list[Site]] = {}
    for site in sites:
        eps = "-" if site.eps is None else f"{site.eps:.3g}"
        groups.setdefault((pattern(site.name), site.slot, site.kind, eps, site.precision), []).append(site)
    table_rows = []
    for (folded_name, slot, kind, eps, precision), members in groups.items():
        measured = [site.variance for site in members if site.variance is not None]
        spread = "-"
        if measured:
            spread = f"{min(low for low, _ in measured):.2g} to {max(high for _, high in measured):.2g}"
        name = members[0].name if len({site.name for site in members}) == 1 else folded_name
        table_rows.append((name or "(model)", slot, kind, eps, precision, spread, str(len(members))))
    return table_rows


HEADINGS = ("norm", "slot", "kind", "eps", "statistics", "variance", "uses")


def table(sites: Sequence[Site]) -> list[tuple[str, ...]]:
    """The headings and rows of the table of sites, without empty columns."""
    lines = [HEADINGS, *rows(sites)]
    filled = [column for column in range(len(HEADINGS)) if any(line[column] != "-" for line in lines[1:])]
    return [tuple(line[column] for column in filled) for line in lines]


def _unknown(unknown: Sequence[Unknown], width: int) -> list[str]:
    """The parts that are not understood, one line for modules that differ only in numbers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in unknown:
        groups.setdefault((each.operator, each.reason), []).append(each.module)
    lines = [f"not understood: {name} in {folded(modules)}: {reason}." for (name, reason), modules in groups.items()]
    wrapped = [textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False) for line in lines]
    return ["", *(part for parts in wrapped for part in parts)] if lines else []


def findings_line(findings: Sequence[Finding]) -> str:
    """The number of findings of each severity."""
    counts = Counter(finding.severity for finding in findings)
    return "findings: " + (", ".join(_count(n, severity) for severity, n in counts.items()) or "none")


def _finding(finding: Finding, paint: Paint, width: int) -> list[str]:
    text = f"{finding.severity}: {finding.rule}: {finding.evidence} {finding.consequence} {finding.remedy}"
    lines = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    mark = f"{finding.severity}:"
    return [lines[0].replace(mark, paint(mark, ROLES[finding.severity]), 1), *lines[1:]]
