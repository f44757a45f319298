"""Estimated time of a run, from the recorded seconds of the same trials, of the same variants or of the same part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from normplace.lab.trials.environment import describe
from normplace.lab.trials.more_seeds import variant_hash
from normplace.lab.trials.results import LatestRecords, TrialRecord, scan
from normplace.lab.trials.runner import Run
from normplace.lab.trials.trial import Trial


@dataclass(frozen=True)
class PartEstimate:
    """The trials of one part, and their time.

    Args:
        part: Name of the part.
        trials: Number of planned trials.
        recorded: Number of those that the result file has already.
        seconds: Estimated seconds of each trial to run; empty if nothing of this part is recorded anywhere.
    """

    part: str
    trials: int
    recorded: int
    seconds: tuple[float, ...]

    @property
    def to_run(self) -> int:
        """Number of trials to run."""
        return self.trials - self.recorded

    @property
    def is_known(self) -> bool:
        """Whether the time is known."""
        return len(self.seconds) == self.to_run


@dataclass(frozen=True)
class RunEstimate:
    """The trials of a run, their time, and what the time is based on.

    Args:
        parts: The parts.
        own: Number of records in the result file of the run that the time is based on.
        committed: Number of records in other files that it is based on.
        machines: Descriptions of the machines they ran on, most frequent first.
        on_gpu: Whether one of the machines had a GPU.
    """

    parts: tuple[PartEstimate, ...]
    own: int
    committed: int
    machines: tuple[str, ...]
    on_gpu: bool

    @property
    def is_known(self) -> bool:
        """Whether the time of every part is known."""
        return all(part.is_known for part in self.parts)

    def wall_seconds(self, jobs: int) -> float:
        """Seconds with ``jobs`` trials at once, at least those of the longest trial; without parts of unknown time."""
        seconds = [second for part in self.parts for second in part.seconds]
        return max(sum(seconds) / jobs, max(seconds, default=0.0))


def estimate(run: Run, out: Path, parts: Sequence[str] = (), committed: Iterable[Path] = ()) -> RunEstimate:
    """Count the trials of a run and estimate their time; nothing runs, and no file is changed.

    The records of the run's own result file come first, because they are from the same machine. A part without any is
    estimated from the committed files.

    Args:
        run: The run.
        out: Folder of its result file.
        parts: Names of the parts to run; empty means all.
        committed: Result files of the same study and scale from elsewhere.

    Raises:
        UsageError: If a part is unknown, or a file cannot be read.
    """
    wanted = [run.study.part(name).name for name in parts] or [part.name for part in run.study.parts]
    plan = run.plan()
    own_file = run.result_file(out)
    own = _read([own_file] if own_file.exists() else [], run)
    others = _read(committed, run)
    finished = {record.hash for record in own}
    used: list[TrialRecord] = []
    used_own = 0
    estimates = []
    for name in wanted:
        trials = {key: trial for key, trial in plan.items() if trial.part == name}
        own_records = [record for record in own if record.part == name]
        records = own_records or [record for record in others if record.part == name]
        pending = [trial for key, trial in trials.items() if key not in finished]
        estimates.append(PartEstimate(name, len(trials), len(trials) - len(pending), _seconds(pending, records)))
        if pending:
            used += records
            used_own += len(own_records)
    machines = Counter(describe(record.hardware) for record in used)
    return RunEstimate(
        tuple(estimates),
        own=used_own,
        committed=len(used) - used_own,
        machines=tuple(machine for machine, _ in machines.most_common()),
        on_gpu=any("gpu" in record.hardware for record in used),
    )


def _read(paths: Iterable[Path], run: Run) -> list[TrialRecord]:
    """The successful records of the run's study and scale."""
    latest = LatestRecords(lambda record: record.study in run.study.names and record.scale == run.scale)
    for path in paths:
        for entry in scan(path, latest.needs):
            if isinstance(entry, TrialRecord):
                latest.add(entry)
    return [record for record in latest.values() if record.status == "ok"]


def _seconds(trials: Sequence[Trial], records: Sequence[TrialRecord]) -> tuple[float, ...]:
    """The mean of the same variant for each trial, else the mean of all records; empty without records."""
    if not records:
        return ()
    by_variant: dict[str, list[float]] = {}
    for record in records:
        by_variant.setdefault(variant_hash(record.part, record.config), []).append(record.seconds)
    mean = fmean(record.seconds for record in records)
    means: Mapping[str, float] = {key: fmean(seconds) for key, seconds in by_variant.items()}
    return tuple(means.get(variant_hash(trial.part, trial.config), mean) for trial in trials)
