"""Findings of an audit: each rule is a function from an analysis to findings, listed in the ``RULES`` of its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from normplace.analysis.analysis import Analysis
from normplace.analysis.findings import depth, initialization, numerics, order, topology
from normplace.analysis.findings.extrapolation import extrapolation
from normplace.analysis.results import SEVERITIES, Finding, pattern

RULES: tuple[Callable[[Analysis], Iterator[Finding]], ...] = (
    *order.RULES,
    *depth.RULES,
    *initialization.RULES,
    *numerics.RULES,
    *topology.RULES,
)

__all__ = ["RULES", "find"]


def find(analysis: Analysis, certified_inputs: tuple[Any, ...] | None = None) -> tuple[Finding, ...]:
    """The findings of all rules, worst first; findings on norms whose names differ only in numbers are merged."""
    findings = [finding for rule in RULES for finding in rule(analysis)]
    if certified_inputs is not None:
        findings += extrapolation(analysis.model, certified_inputs)
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.rule, finding.severity, *map(pattern, finding.where))
        groups.setdefault(key, []).append(finding)
    return tuple(sorted(map(_merge, groups.values()), key=lambda finding: SEVERITIES.index(finding.severity)))


def _merge(group: list[Finding]) -> Finding:
    first, *others = group
    if not others:
        return first
    where = tuple(dict.fromkeys(name for finding in group for name in finding.where))
    more = "one more place" if len(others) == 1 else f"{len(others)} more places"
    return replace(first, where=where, evidence=f"{first.evidence} The same is true in {more}.")
