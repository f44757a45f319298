"""The claims of a paper: published numbers, the numbers measured here, verdict and command."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache

from normplace._shared.text_table import markdown_table
from normplace.lab.trials.claims import Judgement, Measurement, State, Verdict, judge
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.record import SCALES, TrialRecord
from normplace.lab.trials.study import Study
from normplace.lab.trials.verdicts import ScaledJudgement, counts_text
from papers import committed

MOST_LINES = 3
"""Measurements of a claim that are shown at once; more of them are folded."""
HEADINGS = ("claim", "published", "normplace", "verdict")
INTRODUCTION = (
    "Each number is a statistic over seeds with its 95% confidence interval, followed by what the check needs and its "
    "outcome ([how verdicts are formed](../reference/verdicts.md)). `normplace verify` recomputes all of them."
)
_WORST_FIRST = (State.FAILED, State.OPEN, State.VOID, State.PASSED, State.UNTESTED)


class _WatchedRecords(SuccessfulRecords):
    """Records that note the parts that measures select from."""

    def __init__(self, records: Iterable[TrialRecord]) -> None:
        super().__init__(records)
        self.parts: set[str] = set()

    def pick(self, part: str, fields: Mapping[str, object]) -> list[TrialRecord]:
        self.parts.add(part)
        return super().pick(part, fields)


@cache
def parts_of(study: Study, scale: str) -> dict[str, tuple[str, ...]]:
    """The parts that each claim's checks and gates read, by claim."""
    records = _WatchedRecords(committed.records(study.name, scale))
    parts: dict[str, tuple[str, ...]] = {}
    for claim in study.claims:
        records.parts.clear()
        judge(claim, records)
        parts[claim.id] = tuple(part.name for part in study.parts if part.name in records.parts)
    return parts


def claim_tables(study: Study) -> str:
    """One table for each command, with a row for each claim that it tests."""
    groups: dict[tuple[str, tuple[str, ...]], list[ScaledJudgement]] = {}
    for claim in committed.claims():
        if claim.study.name == study.name:
            scale = claim.scale or SCALES[-1]
            groups.setdefault((scale, parts_of(study, scale)[claim.judgement.claim.id]), []).append(claim)
    sections = [INTRODUCTION]
    for (scale, parts), claims in groups.items():
        sections += [
            f"### {' and '.join(parts)}, {scale} scale",
            f"`normplace study {study.name} --scale {scale} --part {' '.join(parts)}`",
            markdown_table(HEADINGS, [_row(study, claim.judgement) for claim in claims]),
        ]
    return "\n\n".join(sections)


def _row(study: Study, judgement: Judgement) -> list[str]:
    claim = judgement.claim
    verdict = f"**{judgement.verdict}**"
    if judgement.verdict is not Verdict.NOT_TESTED:
        verdict += f"<br>{counts_text(judgement)}"
    return [_cell(claim.statement), _cell(_published(study, judgement)), _measured(judgement), verdict]


def _published(study: Study, judgement: Judgement) -> str:
    """Where the claim is published, and its numbers."""
    claim, own = judgement.claim, f"arXiv {study.paper.rpartition('arXiv ')[2]}"
    place = claim.paper.removeprefix(own).lstrip(",; ") or "no number known to us"
    return f"{claim.published} ({place})" if claim.published else place


def _measured(judgement: Judgement) -> str:
    """The measurements, the worst outcomes first; a check of the sign and one of the size share a line."""
    if not any(measurement.n for measurement in judgement.counted):
        return "no results yet"
    grouped: dict[tuple[str, tuple[float, ...]], list[Measurement]] = {}
    for measurement in judgement.counted:
        label = measurement.check.label.removesuffix(", sign").removesuffix(", size")
        grouped.setdefault((label, measurement.values), []).append(measurement)
    ordered = sorted(grouped.items(), key=lambda item: min(_WORST_FIRST.index(one.state) for one in item[1]))
    lines = [_line(label, measurements) for (label, _), measurements in ordered]
    if len(lines) <= MOST_LINES:
        return "<br>".join(lines)
    folded = "<br>".join(lines[1:])
    return f"{lines[0]}<details><summary>{len(lines) - 1} more</summary>{folded}</details>"


def _line(label: str, measurements: list[Measurement]) -> str:
    outcomes = ", ".join(f"{one.check.threshold}: {one.state}" for one in measurements)
    return f"{_cell(label)}: {_cell(str(measurements[0]))} (needs {_cell(outcomes)})"


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return html.escape(text, quote=False).replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
