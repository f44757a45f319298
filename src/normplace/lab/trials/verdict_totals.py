"""Totals of verdicts and checks as a table: one row per run, and one that counts each claim once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from normplace._shared.paint import Paint, unpainted
from normplace._shared.text_table import text_table
from normplace.lab.trials.claims import Judgement, Verdict
from normplace.lab.trials.study import Study
from normplace.lab.trials.verdicts import COUNTED, VERDICT_ROLES, largest_scales

JudgedRun = tuple[Study, str, Sequence[Judgement]]
"""Study, scale and judgements of a result file."""
CHECKS = f"checks {'/'.join(COUNTED)}"


def totals_table(
    runs: Sequence[JudgedRun], paint: Paint = unpainted, width: int | None = None, by_study: bool = False
) -> str:
    """Format the number of claims by verdict and of checks by outcome.

    A table that is wider than the terminal becomes a list.

    Args:
        runs: Study, scale and judgements of each result file.
        paint: Colours the headings.
        width: Width of the terminal; None for any.
        by_study: One row per study, which counts each claim once, at its largest scale, instead of one per run.
    """
    largest = largest_scales(runs)
    total = [claim.judgement for claim in largest]
    if by_study:
        studies = {claim.study.name: claim.study for claim in largest}
        runs = [
            (study, "largest", [claim.judgement for claim in largest if claim.study.name == name])
            for name, study in studies.items()
        ]
    used = [
        verdict
        for verdict in Verdict
        if any(judgement.verdict is verdict for *_, judged in runs for judgement in judged)
    ]
    rows = [[study.name, scale, *_counts(judgements, used)] for study, scale, judgements in runs]
    if len(runs) > 1:
        rows.append(["total", "largest", *_counts(total, used)])
    headings = ["study", "scale", "claims", *used, CHECKS]
    if width is not None and len(text_table(headings, rows).partition("\n")[0]) > width:
        return "\n".join(line for row in rows for line in _as_list(row, used, paint))
    first, *body = text_table(headings, rows, right_from=2).splitlines()
    for verdict in used:
        first = first.replace(f"  {verdict}", f"  {paint(verdict, VERDICT_ROLES[verdict])}", 1)
    if len(runs) > 1:
        body[-1] = paint(body[-1], "heading")
    return "\n".join([first, *body])


def _as_list(row: Sequence[str], used: Sequence[Verdict], paint: Paint) -> Iterator[str]:
    """The counts of a row without those that are zero."""
    study, scale, claims, *counts, checks = row
    yield paint(f"{study}, {scale} scale: {claims} claims", "heading")
    shown = [(count, verdict) for count, verdict in zip(counts, used, strict=True) if count != "0"]
    yield "  " + ", ".join(f"{count} {paint(verdict, VERDICT_ROLES[verdict])}" for count, verdict in shown)
    states = zip(checks.split("/"), COUNTED, strict=True)
    yield "  checks: " + ", ".join(f"{count} {state}" for count, state in states)


def _counts(judgements: Sequence[Judgement], used: Sequence[Verdict]) -> list[str]:
    verdicts = Counter(judgement.verdict for judgement in judgements)
    states = sum((judgement.tested_counts for judgement in judgements), Counter())
    checks = "/".join(str(states[state]) for state in COUNTED)
    return [str(len(judgements)), *(str(verdicts[verdict]) for verdict in used), checks]
