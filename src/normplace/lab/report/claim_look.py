"""How the report shows verdicts and checks: symbols, styles and remarks."""

from __future__ import annotations

from typing import NamedTuple

from normplace.lab.trials.claims import Measurement, State, Verdict
from normplace.lab.trials.verdicts import decision_text


class Look(NamedTuple):
    """Style and text of an outcome.

    Args:
        style: CSS class.
        text: Symbol, with the word where the template does not print it.
    """

    style: str
    text: str


_VERDICTS = {
    Verdict.REPRODUCED: Look("good", "✓"),
    Verdict.MIXED: Look("half", "±"),
    Verdict.PARTLY: Look("half", "◐"),
    Verdict.NOT_REPRODUCED: Look("bad", "✗"),
    Verdict.UNDECIDED: Look("none", "?"),
    Verdict.VOID: Look("none", "∅"),
    Verdict.NOT_TESTED: Look("none", "○"),
}
_STATES = {
    State.PASSED: Look("yes", "✓ passed"),
    State.FAILED: Look("no", "✗ failed"),
    State.OPEN: Look("none", "? open"),
    State.VOID: Look("none", "∅ void"),
    State.UNTESTED: Look("none", "○ not tested"),
}


def verdict_look(verdict: Verdict) -> Look:
    """Style and symbol of a verdict."""
    return _VERDICTS[verdict]


def outcome(measurement: Measurement) -> Look:
    """Style and text of the outcome of a check."""
    return _STATES[measurement.state]


def remark(measurement: Measurement) -> str:
    """Seeds that an open check needs, the outcome without gates, and why a check was added later."""
    remarks = [decision_text(measurement)]
    if measurement.state is State.VOID:
        remarks.append(f"{measurement.ungated} without its gates")
    if measurement.check.added_after:
        remarks.append(f"added later, not counted: {measurement.check.added_after}")
    return "; ".join(filter(None, remarks))
