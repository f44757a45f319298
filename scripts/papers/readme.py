"""One row per paper: the published number, the same number measured here, and how many checks have each outcome."""

from __future__ import annotations

from collections import Counter

from normplace._shared.text_table import markdown_table
from normplace.lab.trials.claims import Judgement, State
from normplace.lab.trials.study import Study
from papers import committed

HEADINGS = ("paper", "published", "normplace", "checks passed / open / failed")


def rows(folder: str = "docs/papers") -> str:
    """The five rows as a Markdown table.

    Args:
        folder: Path from the page with the table to the paper pages.
    """
    return markdown_table(HEADINGS, [_row(study, folder) for study in committed.studies()])


def check_counts(judgements: list[Judgement]) -> Counter[State]:
    """Number of checks with each outcome; those of claims that are not tested have none."""
    return sum((judgement.tested_counts for judgement in judgements), Counter())


def _row(study: Study, folder: str) -> list[str]:
    assert study.headline is not None
    text, _ = committed.measured(study)
    counts = check_counts([claim.judgement for claim in committed.claims() if claim.study.name == study.name])
    outcomes = " / ".join(str(counts[state]) for state in (State.PASSED, State.OPEN, State.FAILED))
    void = f" ({counts[State.VOID]} void)" if counts[State.VOID] else ""
    title = f"[{study.title}]({folder}/{study.name}.md), {link(study)}"
    return [title, study.headline.published, text, f"{outcomes}{void}"]


def link(study: Study) -> str:
    """The paper's arXiv identifier as a link."""
    number = study.paper.rpartition("arXiv ")[2]
    return f"[arXiv {number}](https://arxiv.org/abs/{number})"
