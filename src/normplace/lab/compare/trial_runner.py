"""Run the trainings of one stage on an engine, and record them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from normplace.errors import UsageError
from normplace.lab.compare.config import FINAL, SPEED, CompareTrial
from normplace.lab.compare.edits import Edit
from normplace.lab.compare.study import STUDY, ComparisonCode
from normplace.lab.compare.task import Task
from normplace.lab.compare.trial import train
from normplace.lab.trials.config import config_dict, config_hash
from normplace.lab.trials.engines import Engine
from normplace.lab.trials.results import ResultFile, TrialRecord
from normplace.lab.trials.study import Outcome
from normplace.lab.trials.study_code import StudyCode
from normplace.lab.trials.trial import Trial, failure_reasons, run_trial, run_trials

if TYPE_CHECKING:
    from normplace.lab.trials.progress import Progress

SCALE = "full"
"""The scale that result lines have."""

Worker = Callable[[Trial, StudyCode], Any]


@dataclass(frozen=True)
class TrialRunner:
    """How trials run.

    Args:
        engine: Runs them.
        code: The code that workers import.
        progress: Shows the progress.
        worker: Runs one trial; None for the one of worker processes.
        on_trial: Called with each record, except those that only measure the speed.
    """

    engine: Engine
    code: ComparisonCode
    progress: Progress
    worker: Worker | None = None
    on_trial: Callable[[TrialRecord], None] | None = None

    def run(
        self,
        part: str,
        trials: Sequence[CompareTrial],
        results: ResultFile,
        stop: Callable[[int], bool] = lambda done: False,
    ) -> bool:
        """Run the trials that are not recorded; return whether all finished.

        Args:
            part: The part they belong to.
            trials: The trials, in the order in which they start.
            results: The open result file.
            stop: From the number of recorded trials to whether the others are given up; called after each trial.

        Raises:
            UsageError: If trials fail.
        """
        pending = [trial for trial in trials if not is_recorded(results, part, trial)]
        items = [Trial(STUDY.reference, part, SCALE, config_dict(trial), {}) for trial in pending]
        skipped, failed = len(trials) - len(pending), []
        records = run_trials(STUDY, items, self.engine, self.progress, self.code, skipped=skipped, worker=self.worker)
        done = skipped
        with closing(records):
            for record in records:
                results.append(record)
                done += 1
                failed += [record] if record.status != "ok" else []
                if self.on_trial is not None and part != SPEED:
                    self.on_trial(record)
                if done < len(trials) and stop(done):
                    break
        if failed:
            ((label, reason), *_) = failure_reasons(STUDY, failed).items()
            raise UsageError(
                f"{len(failed)} of {len(pending)} trainings failed, among them {label} ({reason}): correct the cause "
                "and run the same command to resume."
            )
        return done == len(trials)


def is_recorded(results: ResultFile, part: str, trial: CompareTrial) -> bool:
    """Whether a trial has a successful record."""
    record = results.latest.get(config_hash(STUDY.hash_name, part, trial))
    return record is not None and record.status == "ok"


def run_here(task: Task, edits: Sequence[Edit]) -> Worker:
    """A worker for this process, with a task and edits that other processes cannot import."""
    by_name = {edit.name: edit for edit in edits}

    def worker(trial: Trial, code: StudyCode) -> TrialRecord:
        def run(config: CompareTrial) -> Outcome:
            return train(config, task, by_name[config.edit], measure_all=trial.part == FINAL)

        threads = torch.get_num_threads()
        try:
            return run_trial(trial, run, code)
        finally:
            torch.set_num_threads(threads)

    return worker
