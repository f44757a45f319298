"""Run a comparison stage by stage: rungs of the search until every edit has its learning rate, then all seeds.

Each stage follows from the recorded trials alone. After an interruption, the stages are computed again, the recorded
trials are skipped, and the others run.

A time budget is kept in three ways. A short training of each edit measures the speed of the workers, and the plan is
made again if they are slower. The longer rung and the reported trainings get their lengths when they begin, from the
time that is left. If the machine then becomes faster, further seeds fill the time; if it becomes slower, the last seeds
are left out.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median

from normplace.lab.compare.budget import Budget
from normplace.lab.compare.config import FINAL, SEARCH, SPEED, CompareTrial
from normplace.lab.compare.lengths import TARGET, at_speed, fill_time, final_steps, further_seeds, second_rung
from normplace.lab.compare.plan import Plan
from normplace.lab.compare.search import Scores, SearchState, search_state
from normplace.lab.compare.study import STUDY
from normplace.lab.compare.trial_runner import TrialRunner
from normplace.lab.trials.config import config_dict, config_hash
from normplace.lab.trials.results import ResultFile, TrialRecord

TOLERANCE = 0.05
"""Part of a time budget by which it may be exceeded or left unused."""
LEAST_SEEDS = 2
"""Seeds that are trained even after the budget."""


class Stages:
    """The stages of a comparison."""

    def __init__(
        self,
        plan: Plan,
        plan_file: Path,
        results: ResultFile,
        runner: TrialRunner,
        jobs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.plan_file, self.results, self.runner, self.jobs = plan, plan_file, results, runner, jobs
        self.clock = clock
        self._asked = plan.seeds
        self._limit = Budget.parse(plan.budget).seconds
        self._earlier = sum(record.seconds for record in results.records) / jobs
        self._began = 0.0
        self._freed: list[float] = []
        """When workers were free for a reported training, in order."""

    def run(self, began: float, is_new: bool) -> list[TrialRecord]:
        """Run all stages; return the records of the plan.

        Args:
            began: When the comparison began, by the clock.
            is_new: Whether the budget limits this run; a resumed one finishes what is missing.

        Raises:
            UsageError: If trials fail.
        """
        self._began = began
        if change := self.runner.code.change_note(self.results.records):
            self.runner.progress.note(f"{change}; their results are kept, choose another --out to run them again.")
        self._calibrate()
        while missing := self._missing_search():
            self._set_second_rung(missing)
            missing = self._missing_search()  # with the length of the longer rung
            self.runner.run(SEARCH, missing, self.results)
        self._set_final_steps()
        best = {name: state.best for name, state in self.search_states().items() if state.best is not None}
        is_limited = is_new and self._limit is not None
        while True:
            trials = self.plan.final_trials(best)
            self._freed = [self._elapsed()] * self.jobs
            if not self.runner.run(FINAL, trials, self.results, self._is_over if is_limited else lambda done: False):
                self.runner.progress.note("the budget ended before all seeds; run the same command to finish them.")
                break
            if not is_limited or not self._add_seeds(trials):
                break
        return self._records(trials)

    def _is_over(self, _: int) -> bool:
        """Whether a reported training that still runs would end after the budget and its tolerance."""
        assert self._limit is not None
        self._freed.append(self._elapsed())
        seconds = fmean(record.seconds for record in self.results.records[-len(self.plan.edits) :])
        # A worker starts its next training when it has finished one, so the oldest of these times is when the training
        # began that ends next.
        next_end = max(self._freed[-1], self._freed[-self.jobs :][0] + seconds)
        # A fast edit may have finished later seeds than a slow one, so the number of trainings does not suffice.
        first = Counter(record.config["edit"] for record in self.results.records if record.part == FINAL)
        has_seeds = all(first[name] >= LEAST_SEEDS for name in self.plan.edits)
        return has_seeds and next_end > (1 + TOLERANCE) * self._limit

    def _add_seeds(self, trials: Sequence[CompareTrial]) -> bool:
        """Plan further seeds if the time that is left fits them better than it fits none."""
        assert self._limit is not None
        records = [self.results.latest[config_hash(STUDY.hash_name, FINAL, trial)] for trial in trials]
        seconds = {
            name: median(record.seconds for record in records if record.config["edit"] == name)
            for name in self.plan.edits
        }
        slack = TOLERANCE * self._limit
        count = min(self._asked, further_seeds(list(seconds.values()), self._left(), slack, self.jobs))
        if count:
            self.runner.progress.note(
                f"{count} more seed{'s' * (count > 1)} of every edit fill{'s' * (count == 1)} the time that is left."
            )
            self._save(dataclasses.replace(self.plan, seeds=self.plan.seeds + count))
        return count > 0

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

    def _left(self) -> float:
        """Seconds of a time budget that are left for planning."""
        assert self._limit is not None
        return TARGET * self._limit - self._elapsed()

    def _elapsed(self) -> float:
        """Seconds since the comparison began, those of an interrupted run among them."""
        return self._earlier + self.clock() - self._began

    def _save(self, plan: Plan) -> None:
        self.plan = plan
        plan.save(self.plan_file)

    def _calibrate(self) -> None:
        """Measure the speed of workers that train at the same time, and plan again from it, once."""
        if self._limit is None or self.plan.is_calibrated:
            return
        trials = [self.plan.speed_trial(name) for name in self.plan.edits]
        self.runner.run(SPEED, trials, self.results)
        records = [self.results.latest[config_hash(STUDY.hash_name, SPEED, trial)] for trial in trials]
        times = [(record.metrics["step_ms"], self.plan.costs[record.config["edit"]].step) for record in records]
        # The last worker may train alone, so the median over edits counts for all of them. Short trainings may not
        # overlap at all, so they cannot show that workers are faster than planned.
        slowdown = median(measured / (1000 * expected) for measured, expected in times if measured is not None)
        plan = fill_time(at_speed(self.plan, max(1.0, slowdown)), self._left(), self.jobs)
        if plan.steps != self.plan.steps:
            self.runner.progress.note(f"planned again for {plan.steps} steps, from the speed of the workers.")
        self._save(dataclasses.replace(plan, is_calibrated=True))

    def _set_second_rung(self, missing: Sequence[CompareTrial]) -> None:
        """Set the length of the longer rung from the time that is left, before the first training of this rung."""
        if self._limit is None or self.plan.second_rung is not None or all(trial.rung == 0 for trial in missing):
            return
        plan = self._with_measured_costs()
        pending = [plan.costs[trial.edit].search(trial.steps) for trial in missing if trial.rung == 0]
        steps = second_rung(plan, pending, self._left(), self.jobs)
        self._save(dataclasses.replace(self.plan, second_rung=steps))

    def _set_final_steps(self) -> None:
        """Set the length of the reported trainings from the time that is left, once."""
        if self._limit is None or self.plan.final_steps is not None:
            return
        steps = final_steps(self._with_measured_costs(), self._left(), self.jobs)
        self._save(dataclasses.replace(self.plan, final_steps=steps))
        self.runner.progress.note(f"reported trainings have {steps} steps, from the time that is left.")

    def _with_measured_costs(self) -> Plan:
        """The plan with the costs of its search trials; those that diverged stopped early.

        Steps and all else are measured separately: a short trial consists mostly of preparation and validation, and
        what these cost does not show how long a step takes. Medians leave out the first trial of each process, which
        loads libraries.
        """
        costs = dict(self.plan.costs)
        for name, cost in costs.items():
            records = [record for record in self._search_records(name) if not record.metrics["diverged"]]
            if records:
                times = [(record.metrics["train_seconds"] or 0.0, record) for record in records]
                step = median(seconds / record.config["steps"] for seconds, record in times)
                costs[name] = cost.measured(step, median(record.seconds - seconds for seconds, record in times))
        return dataclasses.replace(self.plan, costs=costs)

    def _records(self, trials: Sequence[CompareTrial]) -> list[TrialRecord]:
        """The records of the search and of the reported trainings."""
        search = [record for name in self.plan.edits for record in self._search_records(name)]
        keys = (config_hash(STUDY.hash_name, FINAL, trial) for trial in trials)
        return [*search, *(self.results.latest[key] for key in keys if key in self.results.latest)]
