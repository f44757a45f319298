"""The main result of a paper as a short table."""

from __future__ import annotations

from normplace._shared.text_table import markdown_table
from normplace.lab.trials.claims import State
from normplace.lab.trials.study import Study
from normplace.lab.trials.verdicts import COUNTED, verdicts_text
from papers import committed
from papers.readme import check_counts, link


def headline_table(study: Study) -> str:
    """Paper, published number, the same number measured here, differences, and counts of verdicts and checks."""
    assert study.headline is not None
    text, scale = committed.measured(study)
    judgements = [claim.judgement for claim in committed.claims() if claim.study.name == study.name]
    counts = check_counts(judgements)
    checks = ", ".join(f"{counts[state]} {state}" for state in (*COUNTED, State.UNTESTED) if counts[state])
    rows = [
        ["published", study.headline.published],
        ["normplace", f"{text}, at {scale} scale"],
        ["differences", study.headline.conditions],
        ["verdicts", f"{len(judgements)} claims: {verdicts_text(judgements)}"],
        ["checks", f"{sum(counts.values())} checks: {checks}"],
    ]
    return markdown_table(("paper", f"{study.paper.rpartition(', arXiv')[0]}, {link(study)}"), rows)
