"""Verdicts as text, Markdown and JSON; every summary counts passed, open, failed and void checks separately."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normplace._shared.paint import Paint, unpainted
from normplace._shared.text_table import markdown_table
from normplace.lab.trials.claims import MOST_SEEDS, Judgement, Measurement, State, Verdict, judge_all
from normplace.lab.trials.intervals import TAIL
from normplace.lab.trials.record import SCALES
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Study

FUNCTIONAL_CHECK = "Scale smoke is a functional check and has no verdicts; scales laptop and full have them."
COUNTED = (State.PASSED, State.OPEN, State.FAILED, State.VOID)
VERDICT_ROLES = {
    Verdict.REPRODUCED: "good",
    Verdict.MIXED: "doubt",
    Verdict.PARTLY: "doubt",
    Verdict.NOT_REPRODUCED: "bad",
    Verdict.UNDECIDED: "open",
    Verdict.VOID: "faint",
    Verdict.NOT_TESTED: "faint",
}
STATE_ROLES = {
    State.PASSED: "good",
    State.OPEN: "open",
    State.FAILED: "bad",
    State.VOID: "faint",
    State.UNTESTED: "faint",
}
"""Colours of verdicts and of outcomes, as roles of :mod:`normplace._shared.paint`."""
_HEADINGS = ["claim", "paper", "verdict", "checks", "scale"]


def counts_text(judgement: Judgement) -> str:
    """Counts of a claim's checks; those added after their result was known are counted separately."""
    counts = judgement.counts
    text = states_text(counts)
    if counts[State.VOID]:
        text += f" ({void_text(judgement)} without gates)"
    added = later_text(judgement)
    return f"{text} (added later, not counted: {added})" if added else text


def states_text(counts: Mapping[State, int]) -> str:
    """How many checks have each outcome; passed, open and failed also where there is none."""
    shown = [state for state in (*COUNTED, State.UNTESTED) if counts.get(state) or state in COUNTED[:3]]
    return ", ".join(f"{counts.get(state, 0)} {state}" for state in shown)


def later_text(judgement: Judgement) -> str:
    """Counts of the measured checks that were added after their result was known; empty without any."""
    later = Counter(measurement.state for measurement in judgement.later if measurement.n)
    return ", ".join(f"{n} {state}" for state, n in later.items())


def void_text(judgement: Judgement) -> str:
    """Outcomes of the void checks without their gates."""
    ungated = _ungated(judgement)
    return ", ".join(f"{ungated[state]} {state}" for state in COUNTED if ungated[state])


def _ungated(judgement: Judgement) -> Counter[State]:
    return Counter(measurement.ungated for measurement in judgement.counted if measurement.state is State.VOID)


def decision_text(measurement: Measurement) -> str:
    """For an open check, how many seeds would decide it; empty for others."""
    if measurement.state is not State.OPEN:
        return ""
    kind = measurement.kind
    needed = measurement.seeds_to_decide
    likely = f"about {needed} seeds would decide it" if needed else f"more than {MOST_SEEDS:,} seeds would be needed"
    if measurement.n < kind.least:
        return f"{kind.least} seeds are the fewest that can decide it ({kind}); {likely}"
    return likely


def terminal_lines(judgement: Judgement, every_check: bool = False, paint: Paint = unpainted) -> Iterator[str]:
    """Lines for a terminal: the verdict, its counts, and the checks that did not pass, or all of them."""
    claim = judgement.claim
    yield f"  {paint(judgement.verdict, VERDICT_ROLES[judgement.verdict])}: {claim.statement}"
    yield f"    {counts_text(judgement)} ({claim.paper})"
    for gate in judgement.gates:
        if gate.n and (every_check or gate.state is not State.PASSED):
            yield f"    gate {paint(gate.state, STATE_ROLES[gate.state])}: {_check_text(gate)}"
    for measurement in judgement.measurements:
        added_after = measurement.check.added_after
        if measurement.n and (every_check or measurement.state is not State.PASSED or added_after):
            ungated = f" ({measurement.ungated} without its gates)" if measurement.state is State.VOID else ""
            decision = decision_text(measurement)
            remarks = f"; {decision}" if decision else ""
            remarks += f"; added later, not counted: {added_after}" if added_after else ""
            state = paint(measurement.state, STATE_ROLES[measurement.state])
            yield f"    {state}{ungated}: {_check_text(measurement)}{remarks}"


def _check_text(measurement: Measurement) -> str:
    check = measurement.check
    kind = "" if check.interval.name == "Student" else f" ({check.interval.statistic}; {check.interval})"
    return f"{check.label}: {measurement}{kind}; needs {check.threshold}"


def multiplicity(judgements: Sequence[Judgement]) -> str:
    """How many checks were measured, and how many of them would pass by chance alone."""
    tested = [judgement for judgement in judgements if judgement.verdict is not Verdict.NOT_TESTED]
    total = sum((judgement.counts for judgement in tested), Counter())
    n = sum(total[state] for state in (State.PASSED, State.OPEN, State.FAILED))
    counts = ", ".join(f"{total[state]} {state}" for state in COUNTED)
    ungated = sum((_ungated(judgement) for judgement in tested), Counter())
    without = ", ".join(f"{ungated[state]} {state}" for state in COUNTED[:3])
    void = f" Without their gates, the void checks are {without}." if total[State.VOID] else ""
    return (
        f"{n + total[State.VOID]} checks of {len(tested)} tested claims: {counts}.{void} Intervals have a confidence "
        f"of 95%, {TAIL:.1%} on each side, uncorrected for the number of checks: if the true value of each of the {n} "
        f"checks that are not void were just on the wrong side of its threshold, {TAIL * n:.0f} would pass by chance."
    )


@dataclass(frozen=True)
class ScaledJudgement:
    """The judgement of a claim, and the run that it comes from.

    Args:
        study: The study.
        scale: Scale of the run; None if no run has results for the claim.
        judgement: The claim, its measurements and the verdict.
    """

    study: Study
    scale: str | None
    judgement: Judgement


def at_largest_scale(runs: Iterable[tuple[Study, str, Sequence[TrialRecord]]]) -> list[ScaledJudgement]:
    """Judge each claim once, from the run of the largest scale that has results for it."""
    return largest_scales((study, scale, judge_all(study.claims, records)) for study, scale, records in runs)


def largest_scales(judged: Iterable[tuple[Study, str, Iterable[Judgement]]]) -> list[ScaledJudgement]:
    """Keep one judgement of each claim: that of the largest scale that has results for it."""
    best: dict[tuple[str, str], tuple[int, ScaledJudgement]] = {}
    for study, scale, judgements in judged:
        for judgement in judgements:
            rank = SCALES.index(scale) if judgement.measured else -1
            key = (study.name, judgement.claim.id)
            if key not in best or rank > best[key][0]:
                best[key] = (rank, ScaledJudgement(study, scale if judgement.measured else None, judgement))
    return [scaled for _, scaled in best.values()]


def verdicts_text(judgements: Iterable[Judgement]) -> str:
    """How many claims have each verdict."""
    total = Counter(judgement.verdict for judgement in judgements)
    return ", ".join(f"{total[verdict]} {verdict}" for verdict in Verdict if total[verdict])


def markdown(
    runs: Iterable[tuple[Study, str, Sequence[TrialRecord]]], keep: Callable[[Judgement], bool] = lambda judgement: True
) -> str:
    """Format Markdown with a table for each study: one row per claim, from the largest scale with results."""
    claims = [claim for claim in at_largest_scale(runs) if keep(claim.judgement)]
    judgements = [claim.judgement for claim in claims]
    studies = {claim.study.name: claim.study for claim in claims}
    parts = [_counted(judgements), multiplicity(judgements)]
    for name, study in studies.items():
        own = [claim for claim in claims if claim.study.name == name]
        parts += [f"### {study.title}", _counted([claim.judgement for claim in own]), *_markdown_tables(own)]
    return "\n\n".join(parts)


def _counted(judgements: Sequence[Judgement]) -> str:
    return f"{len(judgements)} claims: {verdicts_text(judgements)}."


def _markdown_tables(claims: Sequence[ScaledJudgement]) -> Iterator[str]:
    """The table of the tested claims, and that of the others, folded."""
    tested = [claim for claim in claims if claim.judgement.verdict is not Verdict.NOT_TESTED]
    others = [claim.judgement.claim for claim in claims if claim.judgement.verdict is Verdict.NOT_TESTED]
    if tested:
        yield markdown_table(_HEADINGS, [_markdown_row(claim) for claim in tested])
    if others:
        table = markdown_table(_HEADINGS[:2], [[claim.statement, claim.paper] for claim in others])
        summary = f"<summary>Claims that are not tested: {len(others)}</summary>"
        yield f"<details markdown>\n{summary}\n\n{table}\n\n</details>"


def _markdown_row(scaled: ScaledJudgement) -> list[str]:
    judgement = scaled.judgement
    claim = judgement.claim
    return [claim.statement, claim.paper, f"**{judgement.verdict}**", counts_text(judgement), scaled.scale or "-"]


def as_json(judgement: Judgement) -> dict[str, Any]:
    """Convert a judgement to JSON values; a number that is not finite becomes null."""
    return {
        "claim": judgement.claim.id,
        "statement": judgement.claim.statement,
        "paper": judgement.claim.paper,
        "published": judgement.claim.published or None,
        "verdict": judgement.verdict.value,
        "counts": {state.value: judgement.counts[state] for state in (*COUNTED, State.UNTESTED)},
        "gates": [_measurement_json(gate) for gate in judgement.gates],
        "checks": [_measurement_json(measurement) for measurement in judgement.measurements],
    }


def _measurement_json(measurement: Measurement) -> dict[str, Any]:
    check = measurement.check
    return {
        "label": check.label,
        "state": measurement.state.value,
        "without_gates": measurement.ungated.value,
        "needs": check.threshold,
        "size": check.size,
        "added_after": check.added_after or None,
        "interval": str(check.interval),
        "statistic": check.interval.statistic,
        "n": measurement.n,
        "estimate": _finite(measurement.estimate),
        "low": _finite(measurement.low),
        "high": _finite(measurement.high),
        "gates": [gate.check.label for gate in measurement.gates],
        "seeds_to_decide": measurement.seeds_to_decide if measurement.state is State.OPEN else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
