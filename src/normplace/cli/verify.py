"""``normplace verify``."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normplace.cli.options import Studies, StudyNames, VerdictWords
from normplace.cli.result_files import of_studies, read_results, report_damage
from normplace.errors import expect_choice

if TYPE_CHECKING:
    from normplace.lab.trials.claims import Judgement
    from normplace.lab.trials.runner import RecordedRun

    Judged = list[tuple[RecordedRun, list[Judgement]]]


def verify(
    *results: Path,
    only: StudyNames = (),
    verdict: VerdictWords = (),
    text: str = "",
    checks: bool = False,
    markdown: bool = False,
    json: bool = False,
    studies: Studies = (),
) -> int:
    """Recompute every verdict from result files; nothing is trained.

    Without arguments, only the totals of the package's results are printed. With files, --only or a filter, the claims
    and the checks that did not pass are listed. The exit code is 1 if result lines are damaged.

    Args:
        results: Result files, or folders of them; the package's own by default.
        only: Show only these studies.
        verdict: Show only claims with these verdicts, such as reproduced or not-reproduced.
        text: Show only claims with this text in the statement, the source, the id or the label of a check.
        checks: Show every check and gate, also those that passed, and the claims that are not tested.
        markdown: Print Markdown with a table for each study.
        json: Print every claim and check as JSON.
        studies: Your own studies among the results, if they moved or ran on another machine.
    """
    keep = _claim_filter(verdict, text)
    recorded = of_studies(read_results(results, studies), only)
    if markdown:
        _print_markdown(recorded, keep)
        return report_damage(recorded)
    judged = [(result, [judgement for judgement in _judgements(result) if keep(judgement)]) for result in recorded]
    if json:
        _print_json(judged)
    else:
        selected = bool(results or only or verdict or text)
        _print_text(judged, filtered=bool(verdict or text), listed=selected or checks, every_check=checks)
    return report_damage(recorded)


def _claim_filter(verdicts: Sequence[str], text: str) -> Callable[[Judgement], bool]:
    """The function that decides which claims are shown.

    Raises:
        UsageError: If a verdict is unknown.
    """
    from normplace.lab.trials.claims import Verdict

    known = {verdict.value.replace(" ", "-"): verdict for verdict in Verdict}
    words = [word.lower().replace(" ", "-") for word in verdicts]
    for word in words:
        expect_choice("verdict", word, known)
    chosen = {known[word] for word in words} or set(Verdict)

    def keep(judgement: Judgement) -> bool:
        claim = judgement.claim
        texts = [claim.statement, claim.paper, claim.id, *(check.label for check in claim.checks)]
        return judgement.verdict in chosen and any(text.casefold() in each.casefold() for each in texts)

    return keep


def _judgements(one: RecordedRun) -> list[Judgement]:
    from normplace.lab.trials.claims import judge_all
    from normplace.lab.trials.results import translate_study_errors

    with translate_study_errors(one.path):
        return judge_all(one.run.study.claims, one.records)


def _print_markdown(recorded: Sequence[RecordedRun], keep: Callable[[Judgement], bool]) -> None:
    from normplace.lab.trials.results import translate_study_errors
    from normplace.lab.trials.verdicts import markdown

    with translate_study_errors("these files"):
        print(markdown([(result.run.study, result.run.scale, result.records) for result in recorded], keep))


def _print_json(judged: Judged) -> None:
    from normplace.lab.trials.verdicts import as_json

    claims: list[dict[str, Any]] = []
    for one, judgements in judged:
        source = {"study": one.run.study.name, "scale": one.run.scale, "file": one.path.name}
        claims += [{**source, **as_json(judgement)} for judgement in judgements]
    print(dumps(claims, indent=1, ensure_ascii=False))


def _print_text(judged: Judged, filtered: bool, listed: bool, every_check: bool) -> None:
    from normplace._shared.paint import painter
    from normplace._shared.terminal import table_width
    from normplace.lab.trials.claims import Verdict
    from normplace.lab.trials.record import FUNCTIONAL_SCALE
    from normplace.lab.trials.verdict_totals import totals_table
    from normplace.lab.trials.verdicts import FUNCTIONAL_CHECK, largest_scales, multiplicity, terminal_lines

    paint, width = painter(sys.stdout), table_width(sys.stdout)
    with_verdicts: Judged = []
    for one, judgements in judged:
        if not judgements:
            continue
        if not listed:
            with_verdicts.append((one, judgements))
            continue
        title = f"{one.run.study.name} at scale {one.run.scale}, {len(one.records)} trials in {one.path}"
        print(paint(title, "heading"))
        if failed := sum(record.status != "ok" for record in one.records):
            print(f"  {failed} of the trials failed, so claims count only the others.")
        if one.run.scale == FUNCTIONAL_SCALE:
            print(f"  {FUNCTIONAL_CHECK}")
            continue
        with_verdicts.append((one, judgements))
        hidden = [] if every_check or filtered else [each for each in judgements if each.verdict is Verdict.NOT_TESTED]
        for judgement in judgements:
            if judgement not in hidden:
                print("\n".join(terminal_lines(judgement, every_check, paint)))
        if hidden:
            print(f"  {paint(Verdict.NOT_TESTED, 'faint')}: {len(hidden)} more claims, which --checks lists")
    if not any(judgements for _, judgements in judged):
        print("No claim has these properties.")
    runs = [(one.run.study, one.run.scale, judgements) for one, judgements in with_verdicts]
    if runs:
        print(f"{chr(10) if listed else ''}{totals_table(runs, paint, width, by_study=not listed)}")
    if runs and not filtered:  # chosen by their verdict, checks do not pass by chance at this rate
        sentences = multiplicity([claim.judgement for claim in largest_scales(runs)])
        print(sentences if width is None else textwrap.fill(sentences, width, break_long_words=False))
    if not listed:
        print(
            "'normplace verify --only STUDY' lists the claims of a study, --checks every number; "
            "'normplace report' writes the page."
        )
