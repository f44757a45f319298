"""The output of ``normplace study --dry-run``."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normplace.lab.trials.estimate import PartEstimate, RunEstimate
    from normplace.lab.trials.runner import Run

HEADINGS = ["part", "trials", "recorded", "to run", "per trial", "one at a time"]
MOST_MACHINES = 2


def print_dry_run(run: Run, out: Path, parts: tuple[str, ...], jobs: int, json: bool) -> None:
    """Print the number of trials by part and the estimated time; nothing runs."""
    from normplace._shared.paint import painter
    from normplace._shared.text_table import text_table
    from normplace.errors import expect_whole
    from normplace.lab.report.text import duration
    from normplace.lab.studies import committed_results
    from normplace.lab.trials.estimate import estimate

    expect_whole(1, **{"--jobs": jobs})
    prefixes = tuple(f"{name}-{run.scale}." for name in run.study.names)
    result = estimate(run, out, parts, [path for path in committed_results() if path.name.startswith(prefixes)])
    seconds = result.wall_seconds(jobs)
    if json:
        print(dumps({**_as_json(run, out, result), "jobs": jobs, "estimated_seconds": round(seconds, 3)}, indent=1))
        return
    paint = painter(sys.stdout)
    print(paint(f"{run.study.name} at scale {run.scale}; results in {run.result_file(out)}", "heading"))
    rows = [_row(part) for part in result.parts]
    counts = [str(sum(getattr(part, name) for part in result.parts)) for name in ("trials", "recorded", "to_run")]
    total = sum(second for part in result.parts for second in part.seconds)
    more = "" if result.is_known else " or more"
    rows.append(["total", *counts, "", f"{duration(total)}{more}" if total else "unknown"])
    heading, *body, last = text_table(HEADINGS, rows, right_from=1).splitlines()
    print("\n".join([paint(heading, "heading"), *body, paint(last, "heading")]))
    least = "" if result.is_known else "at least "
    if any(part.seconds for part in result.parts):
        print(f"Estimated time with --jobs {jobs}: {least}{duration(seconds)}, {_basis(result)}")
    elif any(part.to_run for part in result.parts):
        print(f"The time is unknown: no trial of {run.study.name} at scale {run.scale} is recorded.")


def _row(part: PartEstimate) -> list[str]:
    from normplace.lab.report.text import duration

    times = ["", ""] if not part.to_run else ["unknown", "unknown"]
    if part.seconds:
        times = [duration(sum(part.seconds) / len(part.seconds)), duration(sum(part.seconds))]
    return [part.part, str(part.trials), str(part.recorded), str(part.to_run), *times]


def _basis(result: RunEstimate) -> str:
    """What the time is based on, as the end of a sentence, and a warning if it is from a GPU that is not here."""
    import torch

    sources = [f"{result.own} trials in the result file"] if result.own else []
    sources += [f"{result.committed} trials of the package's results"] if result.committed else []
    machines = "; ".join(result.machines[:MOST_MACHINES])
    text = f"from the recorded seconds of {' and '.join(sources)} ({machines})."
    if result.on_gpu and not torch.cuda.is_available():
        text += " Some ran on a GPU; this machine has none, so expect more."
    return text


def _as_json(run: Run, out: Path, result: RunEstimate) -> dict[str, object]:
    parts = [
        {
            "part": part.part,
            "trials": part.trials,
            "recorded": part.recorded,
            "to_run": part.to_run,
            "seconds": round(sum(part.seconds), 3) if part.is_known else None,
        }
        for part in result.parts
    ]
    basis = {"own_trials": result.own, "committed_trials": result.committed, "machines": result.machines}
    about = {"study": run.study.name, "scale": run.scale, "file": str(run.result_file(out)), "command": run.command}
    return {**about, "parts": parts, "trials": sum(part.trials for part in result.parts), "based_on": basis}
