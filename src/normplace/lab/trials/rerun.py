"""Run recorded trials again, and compare the new numbers with the recorded ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from normplace.errors import UsageError, expect_whole
from normplace.lab.trials.config import config_from_dict
from normplace.lab.trials.engines import Engine
from normplace.lab.trials.record import TrialRecord
from normplace.lab.trials.runner import RecordedRun
from normplace.lab.trials.study import Study
from normplace.lab.trials.study_code import StudyCode
from normplace.lab.trials.trial import Trial, group_hash, run_trials

if TYPE_CHECKING:
    from normplace.lab.trials.progress import Progress

ROUNDING = 1e-5
"""Largest relative difference that is called rounding. Records have seven digits."""


@dataclass(frozen=True)
class Comparison:
    """A recorded trial and its repetition.

    Args:
        study: The study of the trial.
        recorded: The record.
        repeated: The record of the repetition.
    """

    study: Study
    recorded: TrialRecord
    repeated: TrialRecord

    @property
    def same_environment(self) -> bool:
        """Whether CPU, GPU, torch and NumPy are those of the record, so that equal numbers are expected."""
        return _environment(self.recorded) == _environment(self.repeated)

    @property
    def difference(self) -> tuple[str, float]:
        """The metric with the largest relative difference, and that difference; infinite if a number is missing.

        Metrics that depend on the machine are not compared.
        """
        old, new = self.recorded.metrics, self.repeated.metrics
        names = (old.keys() | new.keys()) - set(self.study.part(self.recorded.part).machine_metrics)
        differences = {name: _relative(old.get(name, math.nan), new.get(name, math.nan)) for name in names}
        return max(sorted(differences.items()), key=lambda item: item[1], default=("", 0.0))

    @property
    def outcome(self) -> str:
        """``failed``, ``equal``, ``rounding`` or ``different``."""
        if self.repeated.status != "ok":
            return "failed"
        _, difference = self.difference
        if difference == 0:
            return "equal"
        return "rounding" if difference <= ROUNDING else "different"


def draw(
    results: Sequence[RecordedRun], trials: int, longest: float, seed: int = 0
) -> list[tuple[RecordedRun, TrialRecord]]:
    """Draw successful trials at random, from all parts in turn.

    Trials that cannot run here are left out: their data is missing, or they were recorded with a GPU and there is none.

    Args:
        results: The result files.
        trials: Number of trials; all that qualify if there are fewer.
        longest: Largest recorded duration in seconds.
        seed: Random seed of the choice.

    Raises:
        UsageError: If no trial qualifies.
    """
    expect_whole(1, **{"--trials": trials})
    parts: dict[tuple[str, str], list[tuple[RecordedRun, TrialRecord]]] = {}
    for result in results:
        for record in result.records:
            if record.status == "ok" and record.seconds <= longest and _can_run(result.run.study, record):
                parts.setdefault((result.run.study.name, record.part), []).append((result, record))
    if not parts:
        raise UsageError(
            f"no recorded trial of at most {longest:g} s can run here: raise --longest, or name other result files."
        )
    generator = random.Random(seed)
    shuffled = [generator.sample(part, len(part)) for part in generator.sample(list(parts.values()), len(parts))]
    turns = itertools.zip_longest(*shuffled)
    return list(itertools.islice((one for turn in turns for one in turn if one is not None), trials))


def rerun(drawn: Sequence[tuple[RecordedRun, TrialRecord]], engine: Engine, progress: Progress) -> Iterator[Comparison]:
    """Run trials again, file by file, and yield the comparisons as they finish.

    In parts that compute several seeds at once, the other seeds of the variant run too: rounding depends on them.
    """
    files = {result.path: result for result, _ in drawn}
    for path, result in files.items():
        study = result.run.study
        recorded = {record.hash: record for drawn_from, record in drawn if drawn_from.path == path}
        groups = {_group(study, record) for record in recorded.values()}
        trials = [
            Trial(study.reference, record.part, record.scale, record.config, record.overrides)
            for record in result.records
            if record.status == "ok" and _group(study, record) in groups
        ]
        code = StudyCode.for_workers(study, engine.remote)
        for repeated in run_trials(study, trials, engine, progress, code):
            if repeated.hash in recorded:
                yield Comparison(study, recorded[repeated.hash], repeated)


def _group(study: Study, record: TrialRecord) -> str:
    """Identity of the trials that may run together with a trial."""
    return group_hash(study.part(record.part), record.config) or record.hash


def _can_run(study: Study, record: TrialRecord) -> bool:
    if "gpu" in record.hardware and not torch.cuda.is_available():
        return False
    part = study.part(record.part)
    return part.unavailable_reason(config_from_dict(part.config, record.config)) is None


def _environment(record: TrialRecord) -> tuple[object, ...]:
    software = [record.versions.get(name) for name in ("torch", "numpy")]
    return (*software, record.hardware.get("cpu"), record.hardware.get("gpu"))


def _relative(old: float | None, new: float | None) -> float:
    """Relative difference; None, a number that was not finite, equals only itself."""
    if old == new:
        return 0.0
    if old is None or new is None or math.isnan(old - new):
        return math.inf
    return abs(old - new) / max(abs(old), abs(new))
