"""Verdicts as text, Markdown and JSON; every summary has the counts of held, open, failed and void checks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from normplace.lab.trials.claims import MOST_SEEDS, Judgement, Measurement, State, SuccessfulLines, Verdict, judge
from normplace.lab.trials.intervals import TAIL
from normplace.lab.trials.lines import SCALES
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Study

COUNTED = (State.HELD, State.OPEN, State.FAILED, State.VOID)


def counts_text(judgement: Judgement) -> str:
    """The counts of a claim's checks, with those added after their result apart."""
    counts = judgement.counts
    shown = [state for state in (*COUNTED, State.UNTESTED) if counts[state] or state in COUNTED[:3]]
    text = ", ".join(f"{counts[state]} {state}" for state in shown)
    if counts[State.VOID]:
        text += f" ({void_text(judgement)} without gates)"
    added = later_text(judgement)
    return f"{text} (added later, not counted: {added})" if added else text


def later_text(judgement: Judgement) -> str:
    """The counts of the checks that were added after their result; empty without any that were measured."""
    later = Counter(measured.state for measured in judgement.later if measured.n)
    return ", ".join(f"{n} {state}" for state, n in later.items())


def void_text(judgement: Judgement) -> str:
    """What the void checks would have come to without their gates."""
    alone = Counter(measured.ungated for measured in judgement.counted if measured.state is State.VOID)
    return ", ".join(f"{alone[state]} {state}" for state in COUNTED if alone[state])


def decision_text(measured: Measurement) -> str:
    """For an open check: how many seeds would decide it; empty for others."""
    if measured.state is not State.OPEN:
        return ""
    kind = measured.kind
    needed = measured.seeds_to_decide
    likely = f"about {needed} seeds would decide it" if needed else f"more than {MOST_SEEDS:,} seeds would be needed"
    if measured.n < kind.least:
        return f"{kind.least} seeds are the fewest that can decide it ({kind}); {likely}"
    return likely


def printed(judgement: Judgement, every_check: bool = False) -> Iterator[str]:
    """Lines for a terminal: the verdict, its counts, and the checks that are not held, or all of them.

    Args:
        judgement: The claim and its measurements.
        every_check: Whether to print the held checks and gates too.
    """
    claim = judgement.claim
    yield f"  {judgement.verdict}: {claim.statement}"
    yield f"    {counts_text(judgement)} ({claim.paper})"
    for gate in judgement.gates:
        if gate.n and (every_check or gate.state is not State.HELD):
            yield f"    gate {gate.state}: {_check_text(gate)}"
    for measured in judgement.measurements:
        if measured.n and (every_check or measured.state is not State.HELD or measured.check.added_after):
            decision = decision_text(measured)
            later = f"; added later, not counted: {measured.check.added_after}" if measured.check.added_after else ""
            alone = f" ({measured.ungated} without its gates)" if measured.state is State.VOID else ""
            yield f"    {measured.state}{alone}: {_check_text(measured)}{f'; {decision}' if decision else ''}{later}"


def _check_text(measured: Measurement) -> str:
    check = measured.check
    kind = "" if check.interval.name == "Student" else f" ({check.interval.statistic}; {check.interval})"
    return f"{check.label}: {measured}{kind}; needs {check.threshold}"


def multiplicity(judged: Sequence[Judgement]) -> str:
    """How many checks were measured, and how many of them chance alone may decide wrongly."""
    tested = [one for one in judged if one.verdict is not Verdict.NOT_TESTED]
    total = sum((one.counts for one in tested), Counter())
    n = sum(total[state] for state in (State.HELD, State.OPEN, State.FAILED))
    text = ", ".join(f"{total[state]} {state}" for state in COUNTED)
    return (
        f"{n + total[State.VOID]} checks of {len(tested)} tested claims: {text}. Their intervals have a confidence of "
        f"95%, {TAIL:.1%} on each side, uncorrected for the number of checks: if the true value of each of the {n} "
        f"checks that are not void were just on the wrong side of its threshold, {TAIL * n:.0f} would hold by chance."
    )


def markdown(runs: Sequence[tuple[Study, str, Sequence[TrialRecord]]]) -> str:
    """One Markdown row per claim, from the run of the largest scale that has results for it.

    Args:
        runs: Study, scale and lines of each result file.
    """
    best: dict[tuple[str, str], tuple[int, str, Judgement]] = {}
    for study, scale, lines in runs:
        done = SuccessfulLines(lines)
        for claim in study.claims:
            judgement = judge(claim, done)
            rank = SCALES.index(scale) if any(measured.n for measured in judgement.measurements) else -1
            key = (study.name, claim.id)
            if key not in best or rank > best[key][0]:
                best[key] = (rank, scale if rank >= 0 else "-", judgement)
    head = "| study | claim | paper | verdict | held | open | failed | void | added later | scale |"
    rows = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    for (study, _), (_, scale, judgement) in best.items():
        claim, counts = judgement.claim, judgement.counts
        cells = [study, claim.statement, claim.paper, f"**{judgement.verdict}**"]
        cells += [str(counts[state]) for state in COUNTED]
        if counts[State.VOID]:
            cells[-1] += f" ({void_text(judgement)})"
        rows.append(f"| {' | '.join([*cells, later_text(judgement) or '-', scale])} |")
    chosen = [judgement for _, _, judgement in best.values()]
    total = Counter(judgement.verdict for judgement in chosen)
    words = ", ".join(f"{total[verdict]} {verdict}" for verdict in Verdict if total[verdict])
    return "\n".join([*rows, "", f"{len(chosen)} claims: {words}.", "", multiplicity(chosen)])


def as_json(judgement: Judgement) -> dict[str, Any]:
    """The judgement as JSON types; a number that is not finite is null."""
    return {
        "claim": judgement.claim.id,
        "statement": judgement.claim.statement,
        "paper": judgement.claim.paper,
        "verdict": judgement.verdict.value,
        "counts": {state.value: judgement.counts[state] for state in (*COUNTED, State.UNTESTED)},
        "gates": [_measurement_json(gate) for gate in judgement.gates],
        "checks": [_measurement_json(measured) for measured in judgement.measurements],
    }


def _measurement_json(measured: Measurement) -> dict[str, Any]:
    check = measured.check
    open_check = measured.state is State.OPEN
    return {
        "label": check.label,
        "state": measured.state.value,
        "without_gates": measured.ungated.value,
        "needs": check.threshold,
        "size": check.size,
        "added_after": check.added_after or None,
        "interval": str(check.interval),
        "statistic": check.interval.statistic,
        "n": measured.n,
        "estimate": _finite(measured.estimate),
        "low": _finite(measured.low),
        "high": _finite(measured.high),
        "gates": [gate.check.label for gate in measured.gates],
        "seeds_to_decide": measured.seeds_to_decide if open_check else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
