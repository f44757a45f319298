"""What an audit warns of: each rule is a function from the evidence to findings."""

from __future__ import annotations

from normplace.audit.findings import depth, numerics, order
from normplace.audit.findings.evidence import Evidence
from normplace.audit.result import SEVERITIES, Finding

RULES = (
    order.consecutive,
    order.undone,
    order.unused,
    order.erased_scale,
    order.skip_after_norm,
    depth.missing_final,
    depth.mixed,
    numerics.eps_vanishes,
    numerics.eps_rules,
    numerics.low_precision,
    numerics.overflow,
    numerics.extrapolation,
)

__all__ = ["RULES", "Evidence", "find"]


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """What every rule finds, worst first."""
    found = [finding for rule in RULES for finding in rule(evidence)]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))
