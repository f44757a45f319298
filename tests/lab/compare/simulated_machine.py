"""A machine with a clock of its own, on which the trainings of a comparison take simulated time."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from types import SimpleNamespace

from tests.lab.compare.tiny_task import make

from normplace.lab.compare.config import SPEED
from normplace.lab.compare.edits import parse_edits
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.lengths import make_plan
from normplace.lab.compare.plan import Cost
from normplace.lab.compare.stages import Stages
from normplace.lab.compare.study import STUDY
from normplace.lab.compare.trial_runner import is_recorded
from normplace.lab.trials.config import config_dict, config_hash
from normplace.lab.trials.results import ResultFile, TrialRecord

START_UP = 4.0
"""Seconds of the first training of each worker that are spent on imports."""


class Machine:
    """A machine whose speed changes.

    Args:
        rng: Draws the speed.
        noise: Standard deviation of the logarithm of a training's speed.
        drift: Standard deviation of the logarithm of the machine's speed, which changes slowly.
        bias: Measured over true time of a step, when the plan is made.
        rest_bias: Measured over true time of all else, when the plan is made; ``bias`` by default.
    """

    MEMORY = 60.0
    """Seconds over which the speed is correlated."""

    def __init__(self, rng, noise, drift, bias=1.0, rest_bias=None):
        self.rng, self.noise, self.drift, self.bias = rng, noise, drift, bias
        self.rest_bias = bias if rest_bias is None else rest_bias
        self.now = 0.0
        self._logs = [drift * rng.standard_normal()]
        """Logarithm of the slowness in each second."""

    def slowness(self, time):
        """How many times slower than usual the machine is; an Ornstein-Uhlenbeck process."""
        keep = math.exp(-1 / self.MEMORY)
        while len(self._logs) <= time:
            step = self.drift * math.sqrt(1 - keep**2) * self.rng.standard_normal()
            self._logs.append(keep * self._logs[-1] + step)
        return math.exp(self._logs[int(time)])

    def duration(self, begin, work):
        """Seconds that a training takes which would take ``work`` on a machine of constant speed."""
        work *= math.exp(self.noise * self.rng.standard_normal())
        time = begin
        while work > 0:
            part = min(1.0, work * self.slowness(time))
            work -= part / self.slowness(time)
            time += part
        return time - begin


class SimulatedRunner:
    """Runs trials on a simulated machine, and records when they end.

    Args:
        machine: The machine.
        costs: The true cost of each edit.
        jobs: Trials at once.
        best: The best learning rate of every edit.
    """

    def __init__(self, machine, costs, jobs, best):
        self.machine, self.costs, self.jobs, self.best = machine, costs, jobs, best
        self.progress = SimpleNamespace(note=lambda text: None)
        self.code = SimpleNamespace(change_note=lambda records: None)
        self._fresh = jobs

    def run(self, part, trials, results, stop=lambda done: False):
        pending = [trial for trial in trials if not is_recorded(results, part, trial)]
        running, done = [], len(trials) - len(pending)
        for order in range(len(pending) + self.jobs):
            if order >= self.jobs or order >= len(pending):
                if not running:
                    break
                self.machine.now, _, record = heapq.heappop(running)
                results.append(record)
                done += 1
                if done < len(trials) and stop(done):
                    return False
            if order < len(pending):
                record = self._record(part, pending[order])
                heapq.heappush(running, (self.machine.now + record.seconds, order, record))
        return True

    def _record(self, part, trial):
        cost = self.costs[trial.edit]
        is_final = trial.rung == 2
        work = cost.final(trial.steps, trial.evaluations) if is_final else cost.search(trial.steps)
        seconds = self.machine.duration(self.machine.now, work)
        step = seconds * cost.step / work
        if self._fresh:
            self._fresh -= 1
            seconds += START_UP
        score = math.log(trial.learning_rate / self.best) ** 2
        metrics = {"choose": score, "report": score, "diverged": 0.0}
        metrics |= {"step_ms": 1000 * step, "train_seconds": trial.steps * step}
        config = config_dict(trial)
        key = config_hash(STUDY.hash_name, part, trial)
        return TrialRecord("compare", part, "full", key, config, trial.seed, "ok", metrics, seconds=seconds)


def simulate(folder, machine, *, budget, edits=("as-is", "pre", "peri"), seeds=5, jobs=2, spent=10.0, best=1e-3):
    """Run a comparison; return its wall time as a multiple of the budget, and the records."""
    rates = tuple(1e-3 * 10 ** (k / 2) for k in range(-2, 3))
    costs = {
        name: Cost(step=0.01 * (1 + 0.2 * k), prepare=0.3, validate=0.1, measure=0.5) for k, name in enumerate(edits)
    }
    step, rest = (bias * machine.slowness(0.0) for bias in (machine.bias, machine.rest_bias))
    measured = {name: replace(cost.times(rest), step=step * cost.step) for name, cost in costs.items()}
    options = {"rates": rates, "seeds": seeds, "start": "fresh", "budget": f"{budget}s", "jobs": jobs}
    plan = make_plan(FactoryTask(make), parse_edits(edits), measured, spent=spent, **options)
    machine.now = spent
    runner = SimulatedRunner(machine, costs, jobs, best)
    with ResultFile(folder / "lines.jsonl", ("compare",)) as results:
        stages = Stages(plan, folder / "plan.json", results, runner, jobs, clock=lambda: machine.now)
        records = stages.run(0.0, is_new=True)
    assert SPEED not in {record.part for record in records}
    return machine.now / budget, records, stages.plan
