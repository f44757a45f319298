"""``normplace rerun``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from normplace.cli.options import CORES, Jobs, Studies, StudyNames
from normplace.cli.result_files import of_studies, read_results, report_damage

if TYPE_CHECKING:
    from normplace.lab.trials.rerun import Comparison


def rerun(
    *results: Path,
    only: StudyNames = (),
    trials: int = 10,
    longest: float = 30.0,
    seed: int = 0,
    jobs: Jobs = CORES,
    json: bool = False,
    studies: Studies = (),
) -> int:
    """Run recorded trials again, chosen at random, and compare the numbers.

    On the machine and with the versions and the code of the record the numbers are equal. Elsewhere training amplifies
    differences of rounding, so that single trials differ; a verdict rests on all seeds. Trials without their data here,
    and those of a GPU if there is none, are not chosen. Result files are not changed. The exit code is 1 if trials
    failed or result lines are damaged.

    Args:
        results: Result files, or folders of them; the package's own by default.
        only: Choose only from these studies.
        trials: Number of trials.
        longest: Largest recorded duration of a trial in seconds.
        seed: Random seed of the choice.
        jobs: Trials at once.
        json: Print JSON.
        studies: Your own studies among the results, if they moved or ran on another machine.
    """
    from normplace.lab.trials.engines import open_engine
    from normplace.lab.trials.progress import Progress
    from normplace.lab.trials.rerun import draw
    from normplace.lab.trials.rerun import rerun as run_again

    recorded = of_studies(read_results(results, studies), only)
    drawn = draw(recorded, trials, longest, seed)
    comparisons: list[Comparison] = []
    try:
        with closing(open_engine("local", jobs)) as engine:
            comparisons.extend(run_again(drawn, engine, Progress()))
    finally:  # also after an interruption
        if json:
            print(dumps([_as_dict(comparison) for comparison in comparisons], indent=1, ensure_ascii=False))
        elif comparisons:
            _print_text(comparisons)
    failed = any(comparison.outcome == "failed" for comparison in comparisons)
    return max(report_damage(recorded), int(failed))


def _print_text(comparisons: Sequence[Comparison]) -> None:
    from normplace._shared.terminal import table_width
    from normplace._shared.text_table import text_table

    rows = [_row(comparison) for comparison in comparisons]
    headings = ["study", "scale", "trial", "numbers", "largest difference", "machine and versions", "seconds, before"]
    print(text_table(headings, rows, right_from=6, width=table_width(sys.stdout)))
    counts = Counter(comparison.outcome for comparison in comparisons)
    print(f"\n{len(rows)} trials: {', '.join(f'{number} {outcome}' for outcome, number in counts.most_common())}.")


def _row(comparison: Comparison) -> list[str]:
    from normplace.lab.trials.trial import trial_label

    record, repeated = comparison.recorded, comparison.repeated
    name, difference = comparison.difference
    largest = f"{difference:.2g} of {name}" if comparison.outcome in ("rounding", "different") else ""
    return [
        comparison.study.name,
        record.scale,
        trial_label(comparison.study, record.part, record.config),
        comparison.outcome,
        largest,
        "same" if comparison.same_environment else "other",
        f"{repeated.seconds:.1f}, {record.seconds:.1f}",
    ]


def _as_dict(comparison: Comparison) -> dict[str, object]:
    record, repeated = comparison.recorded, comparison.repeated
    name, difference = comparison.difference
    return {
        "study": comparison.study.name,
        "part": record.part,
        "scale": record.scale,
        "config": record.config,
        "outcome": comparison.outcome,
        "metric": name,
        "difference": difference if difference < float("inf") else None,
        "same_environment": comparison.same_environment,
        "recorded": record.metrics,
        "repeated": repeated.metrics,
        "error": repeated.error,
        "seconds": [repeated.seconds, record.seconds],
    }
