"""Kill a study with SIGKILL at random moments, finish it, and check its result file.

    python scripts/kill_study.py --kills 100

Every finished trial must be in the file exactly once, every line must be readable, and the verdicts must equal those of
an uninterrupted run. If a study finishes before the last kill, it is checked and started again in a new folder.
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
    """Return the command that runs the study."""
    words = [sys.executable, "-m", "normplace", "study", run.study.reference, "--scale", run.scale]
    words += ["--out", str(out), "--jobs", "2"]
    return words + (["--set", *(f"{key}={value}" for key, value in run.overrides.items())] if run.overrides else [])


def run_and_kill(run: Run, out: Path, after: float) -> bool:
    """Start the study and kill it ``after`` seconds; return whether it was still running."""
    process = subprocess.Popen(command(run, out), **QUIET, start_new_session=True)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()  # only the driver: its workers must notice and exit
        process.wait()
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise SystemExit(f"the study ended with code {process.returncode}")
    return False


def facts(lines: list[TrialRecord]) -> list[tuple[str, str, str]]:
    """Return what must not depend on interruptions."""
    return sorted((line.hash, json.dumps(line.metrics), json.dumps(line.series)) for line in lines)


def verdicts(run: Run, lines: list[TrialRecord]) -> list[str]:
    """Return the verdict and measurements of every claim."""
    judgements = [judge(claim, lines) for claim in run.study.claims]
    return [f"{j.claim.id}: {j.verdict} {[str(m) for m in j.measurements]}" for j in judgements]


def check(run: Run, out: Path, reference: list[TrialRecord]) -> None:
    """Compare a finished file with that of the uninterrupted run.

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
    parser.add_argument("--longest", type=float, default=8.0, help="longest time before a run is killed, in seconds")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    study = load_study(arguments.study, STUDIES)
    overrides = {key: json.loads(value) for key, _, value in (word.partition("=") for word in arguments.set)}
    run = Run(study, arguments.scale, overrides)
    rng = random.Random(arguments.seed)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        reference_out = Path(folder) / "uninterrupted"
        subprocess.run(command(run, reference_out), check=True, **QUIET)
        reference = read_records(run.result_file(reference_out))
        kills = finished = torn = 0
        while kills < arguments.kills:
            out = Path(folder) / f"round{finished}"
            while kills < arguments.kills and run_and_kill(run, out, rng.uniform(0.1, arguments.longest)):
                kills += 1
                torn += not _ends_with_newline(run.result_file(out))
            subprocess.run(command(run, out), check=True, **QUIET)
            check(run, out, reference)
            finished += 1
    minutes = (time.monotonic() - start) / 60
    print(
        f"{kills} kills over {finished} finished studies of {len(reference)} trials each in {minutes:.1f} minutes, "
        f"{torn} of them inside a line: every trial once, every line readable, same verdicts as without interruption"
    )


def _ends_with_newline(path: Path) -> bool:
    content = path.read_bytes() if path.exists() else b""
    return not content or content.endswith(b"\n")


if __name__ == "__main__":
    main()
