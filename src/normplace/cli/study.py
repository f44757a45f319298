"""``normplace study``."""

from __future__ import annotations

import shlex
import sys
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from normplace.cli.options import CORES, Assignments, Folder, Jobs, Scale, StudyName, Words
from normplace.cli.program import program


def study(
    study: StudyName,
    /,
    *,
    scale: Scale = "laptop",
    part: Words = (),
    out: Folder = Path("runs"),
    engine: Annotated[str, Parameter(choices=("local", "ray", "dask"))] = "local",
    address: str | None = None,
    jobs: Jobs = CORES,
    seeds: int | None = None,
    settings: Assignments = (),
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Run a study, or resume an interrupted one.

    Results are appended to a file in the output folder, one line per finished trial. Rerun the command to resume after
    an interruption: finished trials are kept, failed ones are retried. The exit code is 1 if trials failed.

    Args:
        study: Name of a study, or the file of your own, such as my_study.py, my_study.py:NAME or package.module:NAME.
        scale: smoke (a functional check in seconds), laptop (minutes) or full (the paper's size).
        part: Run only these parts of the study.
        out: Folder of result files.
        engine: Where trials run.
        address: Address of the Ray or Dask cluster.
        jobs: Trials at once.
        seeds: Number of seeds of every variant; one that the study plans with a single seed or with more keeps its
            seeds. Verdicts count every recorded seed. Choose the number before the run: adding seeds until a check
            passes makes its interval too narrow.
        settings: Settings of every trial, such as epochs=500.
        dry_run: Print the number of trials of each part and the estimated time; run nothing.
        json: Print JSON.
    """
    from contextlib import closing

    from normplace._shared.paint import painter
    from normplace.cli.dry_run import print_dry_run
    from normplace.lab.studies import STUDIES
    from normplace.lab.trials.claims import judge_all
    from normplace.lab.trials.config import parse_overrides
    from normplace.lab.trials.engines import check_engine, open_engine
    from normplace.lab.trials.progress import Progress
    from normplace.lab.trials.record import FUNCTIONAL_SCALE
    from normplace.lab.trials.results import translate_study_errors
    from normplace.lab.trials.runner import Run
    from normplace.lab.trials.study import load_study
    from normplace.lab.trials.trial import failure_reasons
    from normplace.lab.trials.verdicts import FUNCTIONAL_CHECK, as_json, terminal_lines, verdicts_text

    chosen = load_study(study, STUDIES)
    run = Run(chosen, scale, parse_overrides([part.config for part in chosen.parts], settings), seeds)
    check_engine(engine, address)
    if dry_run:
        print_dry_run(run, out, part, jobs, json)
        return 0
    path = run.result_file(out)
    with closing(open_engine(engine, jobs, address)) as workers:
        records = run.execute(out, workers, Progress(), part)
    failures = failure_reasons(chosen, records)
    with translate_study_errors(path):
        judgements = judge_all(chosen.claims, records)
    finished = len(records) - len(failures)
    if json:
        claims = [as_json(judgement) for judgement in judgements]
        summary = {"study": chosen.name, "scale": scale, "file": str(path), "trials": finished, "failed": failures}
        print(dumps({**summary, "claims": claims}, indent=1, ensure_ascii=False))
        return 1 if failures else 0
    paint = painter(sys.stdout)
    if scale == FUNCTIONAL_SCALE:
        print(FUNCTIONAL_CHECK)
    else:
        for judgement in judgements:
            print("\n".join(terminal_lines(judgement, paint=paint)))
        print(f"{len(judgements)} claims: {verdicts_text(judgements)}.")
    print(f"{finished} trials recorded in {path}; '{program()} report {shlex.quote(str(out))}' writes the page.")
    for label, reason in failures.items():
        print(f"{paint('failed', 'bad')}: {label}: {reason}")
    return 1 if failures else 0
