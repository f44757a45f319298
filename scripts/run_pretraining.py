"""Run the next missing pretraining trials of the Peri-LN study in one process, until the time is spent.

Usage: python scripts/run_pretraining.py --minutes 9 --out FOLDER [--trials grid long …] [--state FOLDER]

The text is read once, and networks with the same placement share compiled code. Every finished trial is appended to
FOLDER/periln-full.jsonl as an ordinary result line; lines that are committed, or already in FOLDER, are not run again.
A trial that does not fit into the remaining time is not started, unless --state names a folder: then it is paused when
the time is spent, and the same command resumes it. FOLDER/corpus.json lists the packages of the text.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import sys
import time
from pathlib import Path

import torch

from normplace._shared.device import pick_device
from normplace._shared.output import write_atomic
from normplace.lab.studies.periln import STUDY, pretraining
from normplace.lab.studies.periln.pretraining import FULL, PART, TINY, PretrainingTrial, Setting, pretraining_text
from normplace.lab.studies.periln.pretraining_order import STAGES, pending
from normplace.lab.train.steps import Pause, Paused
from normplace.lab.trials.config import config_dict, config_hash
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import ResultFile, TrialRecord, read_records
from normplace.lab.trials.trial import Trial, run_trial

SETTINGS = {"full": FULL, "smoke": TINY}
COMMITTED = Path(pretraining.__file__).parent / "results"
SHORTEST = 30.0
"""Seconds that must be left to start a trial that can be paused."""
OVERHEAD = 15.0
"""Seconds of a trial for its start, its measurements and its evaluation."""
MARGIN = 1.05


class Runner:
    """Runs trials until the deadline.

    Args:
        scale: ``full``, or ``smoke`` for tiny networks.
        out: Folder of the results.
        stages: Names of stages; empty for all.
        deadline: Value of ``time.monotonic()``.
        state: Folder of paused trials; None to start only trials that fit.
        tokens_per_second: Estimate until a trial has finished.
    """

    def __init__(
        self,
        scale: str,
        out: Path,
        stages: list[str],
        deadline: float,
        state: Path | None = None,
        tokens_per_second: float = 400_000,
    ) -> None:
        self.scale, self.out, self.stages, self.deadline, self.state = scale, out, stages, deadline, state
        self.setting: Setting = SETTINGS[scale]
        self.tokens_per_second = tokens_per_second
        self.attempted: set[PretrainingTrial] = set()

    def run(self) -> int:
        """Run trials; return how many have finished successfully."""
        finished = 0
        name = f"{STUDY.name}-{self.scale}.jsonl"
        committed = COMMITTED / name
        known = read_records(committed) if committed.is_file() else []
        with ResultFile(self.out / name, STUDY.names) as results:
            while (trial := self._next(SuccessfulRecords([*known, *results.records]))) is not None:
                self.attempted.add(trial)
                record = self._run(trial)
                if record is None:
                    break
                results.append(record)
                finished += record.status == "ok"
        return finished

    def _next(self, records: SuccessfulRecords) -> PretrainingTrial | None:
        """The next trial that can be started; None if there is none or no time is left."""
        trials = [trial for trial in pending(records, self.setting, self.stages) if trial not in self.attempted]
        left = self.deadline - time.monotonic()
        report(f"{len(trials)} trials pending, {left:.0f} s left")
        if self.state is not None:
            return next(iter(trials), None) if left > SHORTEST else None
        return next((trial for trial in trials if self._seconds(trial) < left), None)

    def _seconds(self, trial: PretrainingTrial) -> float:
        """Estimated duration of a trial; the time of a step is proportional to the number of weights."""
        size = trial.depth * trial.dim**2 / (24 * 512**2)
        scale = max(size, 0.1) if self.scale == "full" else 0.0
        return MARGIN * scale * trial.tokens / self.tokens_per_second + (OVERHEAD if self.scale == "full" else 0.0)

    def _run(self, trial: PretrainingTrial) -> TrialRecord | None:
        """Run one trial; None if it was paused."""
        label = PART.label(trial)
        report(f"start: {label}")
        request = Trial(STUDY.reference, PART.name, self.scale, config_dict(trial), {})
        run = PART.run
        if self.state is not None:
            name = config_hash(STUDY.hash_name, PART.name, trial)
            run = functools.partial(pretraining.run, pause=Pause(self.state / f"{name}.pt", self.deadline))
        try:
            record = run_trial(request, run)
        except Paused:
            report(f"paused: {label}; the same command resumes it")
            return None
        finally:
            gc.collect()  # a compiled network is part of reference cycles
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if record.status != "ok":
            report(f"failed: {label}\n{record.error}")
            return record
        tokens = record.metrics["tokens"] or 0.0
        if trial.depth == PretrainingTrial.depth and tokens >= FULL.short:
            self.tokens_per_second = tokens / record.seconds
        shown = ("bits_per_byte", "diverged", "peak_most", "gradient_spikes")
        numbers = "  ".join(f"{name} {record.metrics[name]}" for name in shown)
        report(f"done in {record.seconds:.0f} s, {tokens / record.seconds:,.0f} tokens/s: {label}: {numbers}")
        return record


def report(text: str) -> None:
    """Print a line of progress with the seconds since the start of the process."""
    print(f"[{time.monotonic() - STARTED:6.1f}] {text}", flush=True)


def write_corpus(out: Path, name: str) -> None:
    """Read the text and write its digest, its sizes and the versions of its packages."""
    text = pretraining_text(name)
    corpus = text.corpus
    content = {
        "text": corpus.name,
        "sha256": corpus.sha256,
        "train_bytes": len(corpus.train),
        "held_out_bytes": len(corpus.held_out),
        "byte_bits": text.byte_bits,
        "pair_bits": text.pair_bits,
        "packages": [dataclasses.asdict(package) for package in corpus.packages],
    }
    write_atomic(out / "corpus.json", json.dumps(content, indent=1) + "\n")
    report(f"{len(corpus.train):,} bytes of {corpus.name} for training, {len(corpus.held_out):,} held out")
    report(f"byte frequencies {text.byte_bits:.3f} bits per byte, byte pairs {text.pair_bits:.3f}")


def main(arguments: list[str] | None = None) -> int:
    """Run trials until the time is spent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="time limit from the start of the process")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--trials", nargs="*", default=[], choices=[*STAGES], help="stages; all by default")
    parser.add_argument("--state", type=Path, help="folder of paused trials")
    parser.add_argument("--scale", choices=[*SETTINGS], default="full", help="smoke runs tiny networks on the CPU")
    parser.add_argument("--tokens-per-second", type=float, default=400_000, help="estimate for the first trial")
    chosen = parser.parse_args(arguments)
    if chosen.scale == "full" and pick_device("auto").type != "cuda":
        print("pretraining needs a GPU: try the order of the trials with --scale smoke.", file=sys.stderr)
        return 2
    deadline = STARTED + 60 * chosen.minutes
    write_corpus(chosen.out, SETTINGS[chosen.scale].trial("pre", 1e-3, 0, 1000).text)
    runner = Runner(chosen.scale, chosen.out, chosen.trials, deadline, chosen.state, chosen.tokens_per_second)
    report(f"{runner.run()} trials finished")
    return 0


STARTED = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
