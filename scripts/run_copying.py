"""Run the next missing trials of the CausalRN study at the published size in one process, until the time is spent.

Usage: python scripts/run_copying.py --minutes 25 --out FOLDER [--trials copying rates …] [--list]

One process runs one training at a time, so that the recorded times are comparable. Every finished trial is appended to
FOLDER/causalrn-full.jsonl as an ordinary result line; lines that are committed, or already in FOLDER, are not run
again. A trial that does not fit into the remaining time is not started. --list prints the pending trials of each stage
with an upper estimate of their time on an H200, and runs nothing.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

import torch
from orders.copying import STAGES, Request, longest_seconds, pending

from normplace._shared.device import pick_device
from normplace.lab.studies import causalrn
from normplace.lab.studies.causalrn import STUDY
from normplace.lab.trials.config import config_dict
from normplace.lab.trials.per_seed import SuccessfulRecords, pick
from normplace.lab.trials.results import ResultFile, TrialRecord, read_records
from normplace.lab.trials.trial import Trial, run_trial

COMMITTED = Path(causalrn.__file__).parent / "results" / f"{STUDY.name}-full.jsonl"
MARGIN = 1.2
"""Factor on the time of another seed of the same variant."""
SHOWN = ("string", "string_in_budget", "steps", "steps_to_copy", "step_seconds", "string_at_twice", "reach")


class Runner:
    """Runs trials until the deadline.

    Args:
        out: Folder of the results.
        stages: Names of stages; empty for all.
        deadline: Value of ``time.monotonic()``.
    """

    def __init__(self, out: Path, stages: list[str], deadline: float) -> None:
        self.out, self.stages, self.deadline = out, stages, deadline
        self.attempted: set[Request] = set()

    def run(self) -> int:
        """Run trials; return how many have finished successfully."""
        finished = 0
        known = read_records(COMMITTED)
        with ResultFile(self.out / COMMITTED.name, STUDY.names) as results:
            while (request := self._next(SuccessfulRecords([*known, *results.records]))) is not None:
                self.attempted.add(request)
                record = self._run(request)
                results.append(record)
                finished += record.status == "ok"
        return finished

    def _next(self, records: SuccessfulRecords) -> Request | None:
        """The next trial that fits into the remaining time."""
        requests = [request for request in pending(records, self.stages) if request not in self.attempted]
        left = self.deadline - time.monotonic()
        report(f"{len(requests)} trials pending, {left:.0f} s left")
        return next((request for request in requests if self._seconds(records, request) < left), None)

    def _seconds(self, records: SuccessfulRecords, request: Request) -> float:
        """Estimated duration, from other seeds of the same variant if there are any."""
        own = {**config_dict(request.trial), "seed": None}
        others = [
            record.seconds for record in pick(records, request.part.name) if {**record.config, "seed": None} == own
        ]
        return MARGIN * max(others) if others else longest_seconds(request.trial)

    def _run(self, request: Request) -> TrialRecord:
        label = request.part.label(request.trial)
        report(f"start: {label}")
        sent = Trial(STUDY.reference, request.part.name, "full", config_dict(request.trial), {})
        try:
            record = run_trial(sent, request.part.run)
        finally:
            if torch.cuda.is_available():
                gc.collect()  # a recorded step holds the memory of its network
                torch.cuda.empty_cache()
        if record.status != "ok":
            report(f"failed: {label}\n{record.error}")
            return record
        numbers = "  ".join(f"{name} {record.metrics[name]}" for name in SHOWN if name in record.metrics)
        report(f"done in {record.seconds:.0f} s: {label}: {numbers}")
        return record


def report(text: str) -> None:
    """Print a line of progress with the seconds since the start of the process."""
    print(f"[{time.monotonic() - STARTED:6.1f}] {text}", flush=True)


def print_stages(out: Path, stages: list[str]) -> None:
    """Print the pending trials of each stage and an upper estimate of their time."""
    path = out / COMMITTED.name
    records = SuccessfulRecords([*read_records(COMMITTED), *(read_records(path) if path.is_file() else [])])
    for stage in stages or STAGES:
        trials = [request.trial for request in pending(records, [stage])]
        print(f"{stage:22} {len(trials):4} trials, at most {sum(map(longest_seconds, trials)) / 60:5.0f} min")


def main(arguments: list[str] | None = None) -> int:
    """Run trials until the time is spent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.0, help="time limit from the start of the process")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--trials", nargs="*", default=[], choices=[*STAGES], help="stages; all by default")
    parser.add_argument("--list", action="store_true", help="print the pending trials; run nothing")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        print_stages(chosen.out, chosen.trials)
        return 0
    if chosen.minutes <= 0:
        parser.error("give a time limit, such as --minutes 25, or --list")
    if pick_device("auto").type != "cuda":
        print("networks of the published size need a GPU: print the trials with --list.", file=sys.stderr)
        return 2
    report(f"{Runner(chosen.out, chosen.trials, STARTED + 60 * chosen.minutes).run()} trials finished")
    return 0


STARTED = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
