"""``normplace verify``."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normplace.cli.options import Studies
from normplace.cli.result_files import read_results, report_damage

if TYPE_CHECKING:
    from normplace.lab.trials.claims import Judgement
    from normplace.lab.trials.runner import RecordedRun


def verify(*results: Path, studies: Studies = (), markdown: bool = False, json: bool = False) -> int:
    """Recompute every verdict from result files; nothing is trained.

    The exit code is 1 if result lines are damaged.

    Args:
        results: Result files, or folders of them; the package's own by default.
        studies: Your own studies among the results.
        markdown: Print a Markdown table.
        json: Print every claim and check as JSON.
    """
    recorded = read_results(results, studies)
    if markdown:
        _print_markdown(recorded)
    elif json:
        _print_json(recorded)
    else:
        _print_text(recorded)
    return report_damage(recorded)


def _print_markdown(recorded: list[RecordedRun]) -> None:
    from normplace.lab.trials.results import translate_study_errors
    from normplace.lab.trials.verdicts import markdown

    with translate_study_errors("these files"):
        print(markdown([(one.run.study, one.run.scale, one.records) for one in recorded]))


def _print_json(recorded: list[RecordedRun]) -> None:
    from normplace.lab.trials.verdicts import as_json

    claims: list[dict[str, Any]] = []
    for one in recorded:
        source = {"study": one.run.study.name, "scale": one.run.scale, "file": one.path.name}
        claims += [{**source, **as_json(judgement)} for judgement in _judgements(one)]
    print(dumps(claims, indent=1, ensure_ascii=False))


def _print_text(recorded: list[RecordedRun]) -> None:
    from normplace.lab.trials.verdicts import FUNCTIONAL_CHECK, multiplicity, terminal_lines

    judgements: list[Judgement] = []
    for one in recorded:
        print(f"{one.run.study.name} at scale {one.run.scale}, {len(one.records)} trials in {one.path}")
        if one.run.scale == "smoke":
            print(f"  {FUNCTIONAL_CHECK}")
            continue
        for judgement in _judgements(one):
            print("\n".join(terminal_lines(judgement, every_check=True)))
            judgements.append(judgement)
    if judgements:
        print(multiplicity(judgements))


def _judgements(one: RecordedRun) -> list[Judgement]:
    from normplace.lab.trials.claims import judge_all
    from normplace.lab.trials.results import translate_study_errors

    with translate_study_errors(one.path):
        return judge_all(one.run.study.claims, one.records)
