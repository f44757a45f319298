"""Run a comparison stage by stage: rungs of the search until every edit has its learning rate, then all seeds.

Each stage follows from the recorded trials alone. After an interruption, the stages are computed again, the recorded
trials are skipped, and the others run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from normplace.errors import UsageError
from normplace.lab.compare.budget import Budget
from normplace.lab.compare.config import FINAL, SEARCH, CompareTrial
from normplace.lab.compare.edits import Edit
from normplace.lab.compare.plan import TARGET, Plan, final_steps
from normplace.lab.compare.search import Scores, SearchState, search_state
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
OVERTIME = 1.05
"""Multiple of a time budget after which no further training starts."""

Worker = Callable[[Trial, StudyCode], Any]


@dataclass(frozen=True)
class TrialRunner:
    """How trials run.

    Args:
        engine: Runs them.
        code: The code that workers import.
        progress: Shows the progress.
        worker: Runs one trial; None for the one of worker processes.
        on_trial: Called with each record.
    """

    engine: Engine
    code: ComparisonCode
    progress: Progress
    worker: Worker | None = None
    on_trial: Callable[[TrialRecord], None] | None = None

    def run(self, part: str, trials: Sequence[CompareTrial], results: ResultFile, deadline: float | None) -> bool:
        """Run the trials that are not recorded; return whether all were started before the deadline.

        Raises:
            UsageError: If trials fail.
        """
        pending = [trial for trial in trials if not is_recorded(results, part, trial)]
        items = [Trial(STUDY.reference, part, SCALE, config_dict(trial), {}) for trial in pending]
        skipped, failed = len(trials) - len(pending), []
        records = run_trials(STUDY, items, self.engine, self.progress, self.code, skipped=skipped, worker=self.worker)
        left = len(pending)
        with closing(records):
            for record in records:
                results.append(record)
                left -= 1
                failed += [record] if record.status != "ok" else []
                if self.on_trial is not None:
                    self.on_trial(record)
                if deadline is not None and time.monotonic() > deadline:
                    break
        if failed:
            ((label, reason), *_) = failure_reasons(STUDY, failed).items()
            raise UsageError(
                f"{len(failed)} of {len(pending)} trainings failed, among them {label} ({reason}): correct the cause "
                "and run the same command to resume."
            )
        return left == 0


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


class Stages:
    """The stages of a comparison.

    Args:
        plan: The plan.
        plan_file: Where it is saved.
        results: The open result file.
        runner: Runs trials.
        jobs: Trials at once.
    """

    def __init__(self, plan: Plan, plan_file: Path, results: ResultFile, runner: TrialRunner, jobs: int) -> None:
        self.plan, self.plan_file, self.results, self.runner, self.jobs = plan, plan_file, results, runner, jobs
        self._earlier = sum(record.seconds for record in results.records) / jobs

    def run(self, began: float, is_new: bool) -> list[TrialRecord]:
        """Run all stages; return the records of the plan.

        Args:
            began: When the comparison began, by ``time.monotonic``.
            is_new: Whether the budget limits this run; a resumed one finishes what is missing.

        Raises:
            UsageError: If trials fail.
        """
        if change := self.runner.code.change_note(self.results.records):
            self.runner.progress.note(f"{change}; their results are kept, choose another --out to run them again.")
        while missing := self._missing_search():
            self.runner.run(SEARCH, missing, self.results, None)
        states = self.search_states()
        for name, state in states.items():
            if not state.is_interior and len(self.plan.rates) > 1:
                self.runner.progress.note(
                    f"the best learning rate of {name!r}, {state.best:g}, is at the end of those tried "
                    f"({state.grid[0]:g} to {state.grid[-1]:g})."
                )
        self._set_final_steps(began)
        best = {name: state.best for name, state in states.items() if state.best is not None}
        trials = self.plan.final_trials(best)
        limit = Budget.parse(self.plan.budget).seconds
        deadline = None if limit is None or not is_new else began + OVERTIME * limit
        if not self.runner.run(FINAL, trials, self.results, deadline):
            self.runner.progress.note("the budget ended before all seeds; run the same command to finish them.")
        return self._records(trials)

    def search_states(self) -> dict[str, SearchState]:
        """Where the search of each edit is."""
        return {name: search_state(self.plan.rates, self._scores(name)) for name in self.plan.edits}

    def _missing_search(self) -> list[CompareTrial]:
        return [
            self.plan.search_trial(name, rung, rate)
            for name, state in self.search_states().items()
            for rung, rate in state.missing
        ]

    def _search_records(self, edit: str) -> list[TrialRecord]:
        """The search records of an edit that belong to this plan."""
        return [
            record
            for record in self.results.records
            if record.part == SEARCH
            and record.status == "ok"
            and record.config["edit"] == edit
            and record.config
            == config_dict(self.plan.search_trial(edit, record.config["rung"], record.config["learning_rate"]))
        ]

    def _scores(self, edit: str) -> Scores:
        sign = 1.0 if self.plan.task["better"] == "smaller" else -1.0
        scores: dict[tuple[int, float], float | None] = {}
        for record in self._search_records(edit):
            measure = record.metrics["choose"]
            key = (record.config["rung"], record.config["learning_rate"])
            scores[key] = None if measure is None else sign * measure
        return scores

    def _set_final_steps(self, began: float) -> None:
        """Set the length of the reported trainings from the time that is left, once, and save the plan."""
        limit = Budget.parse(self.plan.budget).seconds
        if self.plan.final_steps is not None or limit is None:
            return
        left = TARGET * limit - self._earlier - (time.monotonic() - began)
        steps = final_steps(self.plan, self._slowdown(), left, self.jobs)
        self.plan = dataclasses.replace(self.plan, final_steps=steps)
        self.plan.save(self.plan_file)
        self.runner.progress.note(f"reported trainings have {steps} steps, from the speed of the search.")

    def _slowdown(self) -> dict[str, float]:
        """Median of measured over expected time of the search trials of each edit; those that diverged stopped early.

        The median leaves out the first trial of each process, which loads libraries.
        """
        slowdown = {}
        for name, cost in self.plan.costs.items():
            records = [record for record in self._search_records(name) if not record.metrics["diverged"]]
            if records:
                slowdown[name] = median(record.seconds / cost.search(record.config["steps"]) for record in records)
        return slowdown

    def _records(self, trials: Sequence[CompareTrial]) -> list[TrialRecord]:
        """The records of the search and of the reported trainings."""
        search = [record for name in self.plan.edits for record in self._search_records(name)]
        keys = (config_hash(STUDY.hash_name, FINAL, trial) for trial in trials)
        return [*search, *(self.results.latest[key] for key in keys if key in self.results.latest)]
