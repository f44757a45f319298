"""Run the next missing pretraining trials of a study in one process, until the time is spent.

Usage: python scripts/run_pretraining.py --minutes 9 --out FOLDER [--study causalrn] [--trials grid …] [--state FOLDER]

The text is read once, and networks of the same shape share compiled code. Every finished trial is appended to
FOLDER/STUDY-full.jsonl as an ordinary result line; lines that are committed, or already in FOLDER, are not run again.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from orders import causalrn_pretraining as causalrn_order
from orders import periln_pretraining as periln_order

from normplace._shared.device import pick_device
from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.lab.studies import causalrn, periln
from normplace.lab.studies.causalrn import pretraining as causalrn_part
from normplace.lab.studies.periln import pretraining as periln_part
from normplace.lab.train.corpus import Corpus
from normplace.lab.train.packages import PACKAGES
from normplace.lab.train.steps import Pause, Paused
from normplace.lab.trials.config import config_dict, config_hash
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import ResultFile, TrialRecord, read_records
from normplace.lab.trials.study import Study
from normplace.lab.trials.trial import Trial, run_trial


@dataclass(frozen=True)
class Pretraining:
    """The pretraining of a study.

    Args:
        study: The study.
        part: Module of the part: its ``PART``, ``run`` and sizes ``FULL`` and ``TINY``.
        order: Module with ``STAGES`` and ``pending``.
        seconds: Estimated duration of the steps of a trial, from the trial and the speed of a reference network in
            tokens per second.
        has_reference_speed: Whether a trial trains that network, so that its time updates the speed.
        shown: Metrics to print.
        tokens_per_second: Estimate of that speed until a trial has finished.
    """

    study: Study
    part: ModuleType
    order: ModuleType
    seconds: Callable[[Any, float], float]
    has_reference_speed: Callable[[Any], bool]
    shown: tuple[str, ...]
    tokens_per_second: float

    def settings(self, scale: str) -> Any:
        """Sizes of the plan."""
        return {"full": self.part.FULL, "smoke": self.part.TINY}[scale]


def _periln_seconds(trial: Any, tokens_per_second: float) -> float:
    """The time of a step is proportional to the number of weights."""
    return max(trial.depth * trial.dim**2 / (24 * 512**2), 0.1) * trial.tokens / tokens_per_second


def _causalrn_seconds(trial: Any, tokens_per_second: float) -> float:
    """The time of a step as a multiple of that of the Transformer."""
    slower = {"pairwise": 5.0, "linear-attention": 2.0, "gated-linear": 2.0}
    return slower.get(trial.network, 1.0) * trial.tokens / tokens_per_second


STUDIES = {
    "periln": Pretraining(
        periln.STUDY,
        periln_part,
        periln_order,
        _periln_seconds,
        lambda trial: trial.depth == periln_part.PretrainingTrial.depth and trial.tokens >= periln_part.FULL.short,
        ("bits_per_byte", "diverged", "peak_most", "gradient_spikes"),
        400_000,
    ),
    "causalrn": Pretraining(
        causalrn.STUDY,
        causalrn_part,
        causalrn_order,
        _causalrn_seconds,
        lambda trial: trial.network == "transformer" and trial.tokens >= causalrn_part.FULL.grid,
        ("bits_per_byte", "diverged"),
        1_000_000,
    ),
}
SCALES = ("full", "smoke")
SHORTEST = 30.0
"""Seconds that must be left to start a trial that can be paused."""
OVERHEAD = 15.0
"""Seconds of a trial for its start, its measurements and its evaluation."""
MARGIN = 1.05


@dataclass(frozen=True)
class SpentTime:
    """The seconds that earlier processes spent on a paused trial.

    Args:
        path: The file that keeps them.
    """

    path: Path

    def add(self, seconds: float) -> None:
        """Add the time of this process."""
        write_atomic(self.path, f"{self.read() + seconds:.3f}\n")

    def read(self) -> float:
        """The seconds; 0 if the trial was never paused."""
        return float(self.path.read_text()) if self.path.is_file() else 0.0

    def take(self) -> float:
        """The seconds; they are forgotten, since the trial has finished."""
        seconds = self.read()
        self.path.unlink(missing_ok=True)
        return seconds


class Runner:
    """Runs trials until the deadline.

    Args:
        pretraining: The pretraining of the study.
        scale: ``full``, or ``smoke`` for tiny networks.
        out: Folder of the results.
        stages: Names of stages; empty for all.
        deadline: Value of ``time.monotonic()``.
        state: Folder of paused trials; None to start only trials that fit.
        tokens_per_second: Estimate until a trial has finished; None for that of the study.
    """

    def __init__(
        self,
        pretraining: Pretraining,
        scale: str,
        out: Path,
        stages: list[str],
        deadline: float,
        state: Path | None = None,
        tokens_per_second: float | None = None,
    ) -> None:
        self.pretraining, self.scale, self.out, self.stages = pretraining, scale, out, stages
        self.deadline, self.state = deadline, state
        self.setting = pretraining.settings(scale)
        self.tokens_per_second = tokens_per_second or pretraining.tokens_per_second
        self.attempted: set[Any] = set()

    def run(self) -> int:
        """Run trials; return how many have finished successfully."""
        finished = 0
        study = self.pretraining.study
        name = f"{study.name}-{self.scale}.jsonl"
        committed = Path(str(self.pretraining.part.__file__)).parent / "results"
        known = [record for path in committed.glob(f"{name}*") for record in read_records(path)]
        with ResultFile(self.out / name, study.names) as results:
            while (trial := self._next(SuccessfulRecords([*known, *results.records]))) is not None:
                self.attempted.add(trial)
                record = self._run(trial)
                if record is None:
                    break
                results.append(record)
                finished += record.status == "ok"
        return finished

    def _next(self, records: SuccessfulRecords) -> Any:
        """The next trial that can be started; None if there is none or no time is left."""
        wanted = self.pretraining.order.pending(records, self.setting, self.stages)
        trials = [trial for trial in wanted if trial not in self.attempted]
        left = self.deadline - time.monotonic()
        report(f"{len(trials)} trials pending, {left:.0f} s left")
        if self.state is not None:
            return next(iter(trials), None) if left > SHORTEST else None
        return next((trial for trial in trials if self._seconds(trial) < left), None)

    def _seconds(self, trial: Any) -> float:
        """Estimated duration of a trial."""
        if self.scale != "full":
            return 0.0
        return MARGIN * self.pretraining.seconds(trial, self.tokens_per_second) + OVERHEAD

    def _run(self, trial: Any) -> TrialRecord | None:
        """Run one trial; None if it was paused."""
        study, part = self.pretraining.study, self.pretraining.part.PART
        label = part.label(trial)
        report(f"start: {label}")
        request = Trial(study.reference, part.name, self.scale, config_dict(trial), {})
        run, spent = part.run, None
        if self.state is not None:
            name = config_hash(study.hash_name, part.name, trial)
            pause, spent = Pause(self.state / f"{name}.pt", self.deadline), SpentTime(self.state / f"{name}.seconds")
            run = functools.partial(self.pretraining.part.run, pause=pause)
        start = time.monotonic()
        try:
            record = run_trial(request, run)
        except Paused:
            if spent is not None:
                spent.add(time.monotonic() - start)
            report(f"paused: {label}; the same command resumes it")
            return None
        finally:
            gc.collect()  # a compiled network is part of reference cycles
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if spent is not None:
            record = dataclasses.replace(record, seconds=round(record.seconds + spent.take(), 3))
        if record.status != "ok":
            report(f"failed: {label}\n{record.error}")
            return record
        tokens = record.metrics["tokens"] or 0.0
        if self.pretraining.has_reference_speed(trial):
            self.tokens_per_second = tokens / record.seconds
        numbers = "  ".join(f"{name} {record.metrics[name]}" for name in self.pretraining.shown)
        report(f"done in {record.seconds:.0f} s, {tokens / record.seconds:,.0f} tokens/s: {label}: {numbers}")
        return record


def report(text: str) -> None:
    """Print a line of progress with the seconds since the start of the process."""
    print(f"[{time.monotonic() - STARTED:6.1f}] {text}", flush=True)


def write_corpus(out: Path, corpus: Corpus, **guesses: float) -> None:
    """Write the digest of the text, its sizes and the versions of its packages.

    Args:
        out: Folder of the results.
        corpus: The text as bytes.
        **guesses: Bits per byte of simple guesses.
    """
    content = {
        "text": corpus.name,
        "sha256": corpus.sha256,
        "train_bytes": len(corpus.train),
        "held_out_bytes": len(corpus.held_out),
        **guesses,
        "packages": [dataclasses.asdict(package) for package in corpus.packages],
    }
    write_atomic(out / "corpus.json", json.dumps(content, indent=1) + "\n")
    report(f"{len(corpus.train):,} bytes of {corpus.name} for training, {len(corpus.held_out):,} held out")
    for name, bits in guesses.items():
        report(f"{name} {bits:.3f}")


def describe_text(name: str, scale: str, out: Path) -> None:
    """Read the text of a study and describe it in FOLDER/corpus.json."""
    source = STUDIES[name].part.TINY.shape["text"] if scale == "smoke" else PACKAGES
    if name == "periln":
        text = periln_part.pretraining_text(source)
        write_corpus(out, text.corpus, byte_bits=text.byte_bits, pair_bits=text.pair_bits)
    else:
        write_corpus(out, causalrn_part.pretraining_text(source))


def main(arguments: list[str] | None = None) -> int:
    """Run trials until the time is spent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="time limit from the start of the process")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--study", choices=[*STUDIES], default="periln", help="the study, by default periln")
    parser.add_argument("--trials", nargs="*", default=[], help="stages; all by default")
    parser.add_argument("--state", type=Path, help="folder of paused trials")
    parser.add_argument("--scale", choices=SCALES, default="full", help="smoke runs tiny networks on the CPU")
    parser.add_argument("--tokens-per-second", type=float, help="estimate for the first trial")
    chosen = parser.parse_args(arguments)
    if chosen.scale == "full" and pick_device("auto").type != "cuda":
        print("pretraining needs a GPU: try the order of the trials with --scale smoke.", file=sys.stderr)
        return 2
    pretraining = STUDIES[chosen.study]
    try:
        pretraining.order.pending([], pretraining.settings(chosen.scale), chosen.trials)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    describe_text(chosen.study, chosen.scale, chosen.out)
    deadline = STARTED + 60 * chosen.minutes
    runner = Runner(
        pretraining, chosen.scale, chosen.out, chosen.trials, deadline, chosen.state, chosen.tokens_per_second
    )
    report(f"{runner.run()} trials finished")
    return 0


STARTED = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
