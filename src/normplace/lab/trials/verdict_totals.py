"""Totals of verdicts and checks as a table: one row per run, and one that counts each claim once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from normplace._shared.paint import Paint, unpainted
from normplace._shared.text_table import text_table
from normplace.lab.trials.claims import Judgement, Verdict
from normplace.lab.trials.study import Study
from normplace.lab.trials.verdicts import COUNTED, VERDICT_ROLES, largest_scales

JudgedRun = tuple[Study, str, Sequence[Judgement]]
"""Study, scale and judgements of a result file."""
CHECKS = f"checks {'/'.join(COUNTED)}"


def totals_table(runs: Sequence[JudgedRun], paint: Paint = unpainted) -> str:
    """Format the number of claims by verdict and of checks by outcome.

    Args:
        runs: Study, scale and judgements of each result file.
        paint: Colours the headings.
    """
    total = [claim.judgement for claim in largest_scales(runs)]
    used = [
        verdict
        for verdict in Verdict
        if any(judgement.verdict is verdict for *_, judged in runs for judgement in judged)
    ]
    rows = [[study.name, scale, *_counts(judgements, used)] for study, scale, judgements in runs]
    if len(runs) > 1:
        rows.append(["total", "largest", *_counts(total, used)])
    headings = ["study", "scale", "claims", *used, CHECKS]
    first, *body = text_table(headings, rows, right_from=2).splitlines()
    for verdict in used:
        first = first.replace(f"  {verdict}", f"  {paint(verdict, VERDICT_ROLES[verdict])}", 1)
    if len(runs) > 1:
        body[-1] = paint(body[-1], "heading")
    return "\n".join([first, *body])


def _counts(judgements: Sequence[Judgement], used: Sequence[Verdict]) -> list[str]:
    verdicts = Counter(judgement.verdict for judgement in judgements)
    states = sum((judgement.tested_counts for judgement in judgements), Counter())
    checks = "/".join(str(states[state]) for state in COUNTED)
    return [str(len(judgements)), *(str(verdicts[verdict]) for verdict in used), checks]
