"""Kill a study with SIGKILL at random moments until it has been killed often enough, finish it, and check the file.

    python scripts/kill_study.py --kills 100

Every completed trial must be in the file exactly once, no line unreadable, and the verdicts those of a run that was
never interrupted. A study that finishes before the kills are spent is checked and started again in a new folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from normplace.lab.studies import STUDIES
from normplace.lab.trials.claims import judge
from normplace.lab.trials.results import TrialRecord, read_records
from normplace.lab.trials.runner import Run
from normplace.lab.trials.study import load_study

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def command(run: Run, out: Path) -> list[str]:
    """The command line of one run of the study."""
    words = [sys.executable, "-m", "normplace", "study", run.study.reference, "--scale", run.scale]
    words += ["--out", str(out), "--jobs", "2"]
    return words + (["--set", *(f"{key}={value}" for key, value in run.overrides.items())] if run.overrides else [])


def run_and_kill(run: Run, out: Path, after: float) -> bool:
    """Start the study and kill it ``after`` seconds; whether it was still running then."""
    process = subprocess.Popen(command(run, out), **QUIET, start_new_session=True)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()  # the driver alone, as the kernel would: its workers must notice by themselves
        process.wait()
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise SystemExit(f"the study ended with code {process.returncode}")
    return False


def facts(lines: list[TrialRecord]) -> list[tuple[str, str, str]]:
    """What must not depend on interruptions."""
    return sorted((line.hash, json.dumps(line.metrics), json.dumps(line.series)) for line in lines)


def verdicts(run: Run, lines: list[TrialRecord]) -> list[str]:
    """Every claim's verdict with its numbers."""
    judgements = [judge(claim, lines) for claim in run.study.claims]
    return [f"{j.claim.id}: {j.verdict} {[str(m) for m in j.measurements]}" for j in judgements]


def check(run: Run, out: Path, reference: list[TrialRecord]) -> None:
    """Compare a finished file with the uninterrupted run's.

    Raises:
        SystemExit: If they differ.
    """
    lines = read_records(run.result_file(out))
    repeated = {key: count for key, count in Counter(line.hash for line in lines).items() if count > 1}
    problems = [f"trials recorded more than once: {repeated}"] if repeated else []
    problems += [] if facts(lines) == facts(reference) else ["the recorded numbers differ"]
    problems += [] if verdicts(run, lines) == verdicts(run, reference) else ["the verdicts differ"]
    if problems:
        raise SystemExit("; ".join(problems))


def main() -> None:
    """Kill, finish, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="extrapolation")
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--longest", type=float, default=8.0, help="seconds a run may live before it is killed")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    study = load_study(arguments.study, STUDIES)
    overrides = {key: json.loads(value) for key, _, value in (word.partition("=") for word in arguments.set)}
    run = Run(study, arguments.scale, overrides)
    chance = random.Random(arguments.seed)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        reference_out = Path(folder) / "uninterrupted"
        subprocess.run(command(run, reference_out), check=True, **QUIET)
        reference = read_records(run.result_file(reference_out))
        kills = finished = torn = 0
        while kills < arguments.kills:
            out = Path(folder) / f"round{finished}"
            while kills < arguments.kills and run_and_kill(run, out, chance.uniform(0.1, arguments.longest)):
                kills += 1
                torn += not _ends_whole(run.result_file(out))
            subprocess.run(command(run, out), check=True, **QUIET)
            check(run, out, reference)
            finished += 1
    minutes = (time.monotonic() - start) / 60
    print(
        f"{kills} kills over {finished} finished studies of {len(reference)} trials each in {minutes:.1f} minutes, "
        f"{torn} of them inside a line: every trial once, every line readable, verdicts as without interruption"
    )


def _ends_whole(path: Path) -> bool:
    content = path.read_bytes() if path.exists() else b""
    return not content or content.endswith(b"\n")


if __name__ == "__main__":
    main()
