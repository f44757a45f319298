"""What an audit warns of: each rule is a function from the evidence to findings."""

from __future__ import annotations

from dataclasses import replace

from normplace.analysis.findings import depth, initialization, numerics, order
from normplace.analysis.findings.evidence import Evidence
from normplace.analysis.results import SEVERITIES, Finding, pattern

RULES = (
    order.consecutive,
    order.undone,
    order.unused,
    order.erased_scale,
    order.skip_after_norm,
    depth.missing_final,
    depth.mixed,
    initialization.small_matrix,
    numerics.eps_vanishes,
    numerics.eps_rules,
    numerics.low_precision,
    numerics.overflow,
    numerics.extrapolation,
)

__all__ = ["RULES", "Evidence", "find"]


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """What every rule finds, worst first, and once for norms that differ only in the numbers of their names."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for rule in RULES:
        for finding in rule(evidence):
            key = (finding.rule, finding.severity, *map(pattern, finding.where))
            groups.setdefault(key, []).append(finding)
    found = [_merged(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _merged(group: list[Finding]) -> Finding:
    first, *others = group
    if not others:
        return first
    where = tuple(dict.fromkeys(name for finding in group for name in finding.where))
    more = "one more place" if len(others) == 1 else f"{len(others)} more places"
    return replace(first, where=where, evidence=f"{first.evidence} So it is in {more} like this.")
