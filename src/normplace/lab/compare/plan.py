"""The plan of a comparison: which trainings run, how long they are, and what they cost.

The plan is written to a file before the first training, so that an interrupted comparison resumes with the same
trainings. With a time budget, the lengths of the longer rung and of the reported trainings are set again when they
begin, from the time that is left and the speed that was measured; then the file is written again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.lab.compare.budget import LEAST_STEPS, Budget, largest_steps, makespan
from normplace.lab.compare.config import CompareTrial
from normplace.lab.compare.edits import Edit
from normplace.lab.compare.search import FIRST_RUNG, PROMOTED, RUNG_RATIO, RUNGS
from normplace.lab.compare.task import Task
from normplace.lab.report.text import duration, training_length

SEARCH_SEED = 1_000_000
"""Seed of the search, which no reported training has."""
MOST_EVALUATIONS = 10
EVALUATION_SHARE = 0.1
"""Largest part of a reported training's time that is spent on validation during training, if the budget is a time."""
SPEED_SHARE, SPEED_STEPS = 0.05, 30
"""Length of a training that measures the speed of a worker, as a fraction of a reported one, and its fewest steps."""
SEARCH_SHARE = 0.4
"""Largest part of a time budget that is planned for the search."""
SHORTEST_RUNG = 0.05
"""Shortest length of a rung, as a fraction of a reported training."""
GROWTH = 1
"""Learning rates by which grids are expected to grow."""
TARGET = 0.99
"""Part of a time budget that is planned."""
LONGEST = 2.0
"""Largest factor by which reported trainings are lengthened after the search."""


@dataclass(frozen=True)
class Cost:
    """Measured times of one edit, in seconds.

    Args:
        step: One training step.
        prepare: Build, edit and check the model.
        validate: One validation.
        measure: Signals and memory of a reported training.
    """

    step: float
    prepare: float
    validate: float
    measure: float

    def search(self, steps: int) -> float:
        """Time of a training that chooses a learning rate."""
        return self.prepare + 3 * self.validate + steps * self.step

    def final(self, steps: int, evaluations: int) -> float:
        """Time of a reported training."""
        return self.prepare + (2 + evaluations) * self.validate + self.measure + steps * self.step

    def times(self, factor: float) -> Cost:
        """The cost on a machine that is slower by a factor."""
        return Cost(*(factor * value for value in dataclasses.astuple(self)))

    def on_shared_gpu(self, trainings: float) -> Cost:
        """The cost if several trainings share a GPU; the model is prepared on the CPU."""
        return dataclasses.replace(self.times(max(1.0, trainings)), prepare=self.prepare)


@dataclass(frozen=True)
class Plan:
    """Which trainings a comparison runs.

    Args:
        task: What the task reports about itself, and the text from which a worker builds it.
        edits: The text from which a worker builds each edit, by its name; None for a function of this process.
        rates: Learning rates tried first.
        seeds: Number of seeds.
        start: ``fresh`` or ``weights``.
        budget: The budget as the user wrote it.
        costs: Measured cost of each edit.
        steps: Planned steps of a reported training.
        final_steps: Steps of a reported training once the search is finished; None before, if the budget is a time.
        evaluations: Validations during a reported training.
        on_gpu: Whether the models are on a GPU.
        is_calibrated: Whether the costs are those of the workers, if the budget is a time.
        first_rung: Length of the shortest rung of the search, as a fraction of the planned steps.
        second_rung: Steps of the longer rung once the shortest is finished; None before, if the budget is a time.
        notes: Sentences for the result.
    """

    task: Mapping[str, Any]
    edits: Mapping[str, str | None]
    rates: tuple[float, ...]
    seeds: int
    start: str
    budget: str
    costs: Mapping[str, Cost]
    steps: int
    final_steps: int | None
    evaluations: int
    on_gpu: bool = False
    is_calibrated: bool = False
    first_rung: float = FIRST_RUNG
    second_rung: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def rungs(self) -> tuple[int, ...]:
        """Steps of each rung of the search; none if there is one learning rate."""
        if len(self.rates) == 1:
            return ()
        first = self.first_rung * self.steps
        return max(1, round(first)), self.second_rung or max(1, round(RUNG_RATIO * first))

    def trial(self, edit: str, rate: float, *, seed: int, rung: int, steps: int, evaluations: int) -> CompareTrial:
        """The configuration of one training."""
        return CompareTrial(
            task=self.task["name"],
            edit=edit,
            learning_rate=rate,
            steps=steps,
            rung=rung,
            seed=seed,
            start=self.start,
            reference=self.task["reference"] or "",
            recipe=self.edits[edit] or "",
            evaluations=evaluations,
        )

    def search_trial(self, edit: str, rung: int, rate: float) -> CompareTrial:
        """A training that chooses a learning rate."""
        return self.trial(edit, rate, seed=SEARCH_SEED, rung=rung, steps=self.rungs[rung], evaluations=1)

    def speed_trial(self, edit: str) -> CompareTrial:
        """A short training that measures the speed of a worker."""
        steps = max(SPEED_STEPS, round(SPEED_SHARE * self.steps))
        rate = self.rates[len(self.rates) // 2]
        return self.trial(edit, rate, seed=SEARCH_SEED, rung=0, steps=steps, evaluations=1)

    def final_trials(self, best: Mapping[str, float]) -> list[CompareTrial]:
        """The reported trainings, seed by seed, so that an interrupted comparison has whole seeds.

        Args:
            best: The learning rate of each edit.
        """
        steps = self.final_steps or self.steps
        return [
            self.trial(edit, best[edit], seed=seed, rung=RUNGS, steps=steps, evaluations=self.evaluations)
            for seed in range(self.seeds)
            for edit in self.edits
        ]

    def stages(self) -> Iterator[tuple[str, int, list[float]]]:
        """Name, steps and expected seconds of the trainings of each stage."""
        counts = (len(self.rates) + GROWTH, PROMOTED)
        for rung, (length, count) in enumerate(zip(self.rungs, counts, strict=False)):
            times = [cost.search(length) for cost in self.costs.values() for _ in range(count)]
            yield f"search, rung {rung}", length, times
        steps = self.final_steps or self.steps
        yield "report", steps, self.final_seconds(steps)

    def final_seconds(self, steps: int) -> list[float]:
        """Expected time of each reported training."""
        return [cost.final(steps, self.evaluations) for _ in range(self.seeds) for cost in self.costs.values()]

    def wall_seconds(self, steps: int, jobs: int) -> float:
        """Expected wall time of all stages, for reported trainings of a number of steps."""
        planned = dataclasses.replace(self, steps=steps, second_rung=None, final_steps=None)
        return sum(makespan(times, jobs) for _, _, times in planned.stages())

    def describe(self, jobs: int) -> str:
        """The plan and its cost, as a table."""
        n = len(self.edits)
        lines = [f"{n} edit{'s' * (n != 1)} × {self.seeds} seeds of {self.task['name']}, start: {self.start}"]
        total = 0.0
        for name, steps, times in self.stages():
            wall = makespan(times, jobs)
            total += wall
            lines.append(f"  {name:15} {len(times):4} trainings of {steps:6} steps  {duration(wall):>8}")
        steps = [1000 * cost.step for cost in self.costs.values()]
        budget = Budget.parse(self.budget)
        lines.append(
            f"  expected time: {duration(total)} (budget: {budget}), {jobs} at once; a step takes {min(steps):.3g} to "
            f"{max(steps):.3g} ms"
        )
        if tokens := self.task.get("tokens_per_step"):
            length = training_length(self.final_steps or self.steps, tokens)
            lines.append(f"  a reported training has {length}")
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """Write the plan to a file."""
        write_atomic(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n", "choose another --out")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read the plan of an earlier run.

        Raises:
            UsageError: If the file is not a plan.
        """
        try:
            data = json.loads(path.read_text())
            data["costs"] = {name: Cost(**cost) for name, cost in data["costs"].items()}
            return cls(**{**data, "rates": tuple(data["rates"]), "notes": tuple(data["notes"])})
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise UsageError(f"{path} is not the plan of a comparison: choose another --out.") from error

    def require_same(self, path: Path, **arguments: Any) -> None:
        """Check that this plan was made for the same arguments.

        Args:
            path: The folder of the plan, for the error.
            **arguments: Fields of a plan, as they would be now.

        Raises:
            UsageError: If one differs.
        """
        for name, now in arguments.items():
            before = getattr(self, name)
            if before != now:
                raise UsageError(
                    f"{path} has a comparison with another {name} ({before}, now {now}): choose another --out."
                )


def described(task: Task) -> dict[str, Any]:
    """What a plan records about a task."""
    return {**task.describe(), "reference": task.reference}


def make_plan(
    task: Task,
    edits: Sequence[Edit],
    costs: Mapping[str, Cost],
    *,
    rates: tuple[float, ...],
    seeds: int,
    start: str,
    budget: str,
    jobs: int,
    spent: float,
    on_gpu: bool = False,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Plan a comparison from measured costs.

    Args:
        task: The task.
        edits: The edits.
        costs: Measured cost of each edit.
        rates: Learning rates tried first.
        seeds: Number of seeds.
        start: ``fresh`` or ``weights``.
        budget: The budget.
        jobs: Trainings at once.
        spent: Seconds of the budget that are spent.
        on_gpu: Whether the models are on a GPU.
        notes: Sentences for the result.

    Raises:
        UsageError: If the budget is too small.
    """
    limit = Budget.parse(budget)
    recipes = {edit.name: edit.recipe for edit in edits}
    plan = Plan(
        task=described(task),
        edits=recipes,
        rates=rates,
        seeds=seeds,
        start=start,
        budget=budget,
        costs=costs,
        steps=0,
        final_steps=limit.steps,
        evaluations=1,
        on_gpu=on_gpu,
        notes=notes,
    )
    if limit.steps is not None:  # a plan that does not depend on the speed of the machine
        return dataclasses.replace(plan, steps=limit.steps, evaluations=min(MOST_EVALUATIONS, limit.steps))
    assert limit.seconds is not None
    plan = dataclasses.replace(plan, first_rung=first_rung(len(rates), seeds))
    left = TARGET * limit.seconds - spent
    if plan.wall_seconds(LEAST_STEPS, jobs) > left:
        raise UsageError(
            f"the budget of {plan.budget} leaves {duration(max(0.0, left))} for trainings, but those of {LEAST_STEPS} "
            f"steps already take {duration(plan.wall_seconds(LEAST_STEPS, jobs))}: raise the budget, or compare fewer "
            "edits, learning rates or seeds."
        )
    return fill_time(plan, left, jobs)


def first_rung(rates: int, seeds: int) -> float:
    """Length of the shortest rung, so that the reported trainings have most of the time.

    Args:
        rates: Number of learning rates tried first.
        seeds: Number of seeds.

    Examples:
        >>> first_rung(rates=5, seeds=5), first_rung(rates=5, seeds=3)
        (0.25, 0.2)
    """
    trainings = rates + GROWTH + RUNG_RATIO * PROMOTED  # of the shortest length, for each edit
    affordable = SEARCH_SHARE / (1 - SEARCH_SHARE) * seeds / trainings
    return round(min(FIRST_RUNG, max(SHORTEST_RUNG, affordable)), 3)


def fill_time(plan: Plan, left: float, jobs: int) -> Plan:
    """The plan with trainings as long as the time allows, or of the fewest steps.

    Args:
        plan: The plan.
        left: Seconds left for all stages.
        jobs: Trainings at once.
    """
    for _ in range(2):  # the number of validations follows from the number of steps, and the reverse
        plan = dataclasses.replace(
            plan, steps=largest_steps(lambda steps, plan=plan: plan.wall_seconds(steps, jobs) <= left) or LEAST_STEPS
        )
        plan = dataclasses.replace(plan, evaluations=_evaluations(plan))
    return plan


def _evaluations(plan: Plan) -> int:
    """How often a reported training is validated, so that validation takes a small part of its time."""
    affordable = [
        EVALUATION_SHARE * plan.steps * cost.step / cost.validate for cost in plan.costs.values() if cost.validate
    ]
    return max(1, min(MOST_EVALUATIONS, plan.steps, *map(int, affordable)))


def at_speed(plan: Plan, slowdown: Mapping[str, float]) -> Plan:
    """The plan with costs of a slower machine.

    Args:
        plan: The plan.
        slowdown: Measured over expected time, by edit.
    """
    costs = {name: cost.times(slowdown.get(name, 1.0)) for name, cost in plan.costs.items()}
    return dataclasses.replace(plan, costs=costs)


def further_seeds(seconds: Sequence[float], left: float, slack: float, jobs: int) -> int:
    """Number of further seeds that fill the time that is left.

    Args:
        seconds: Time of a reported training of each edit.
        left: Seconds left.
        slack: Seconds that may stay unused, and by which the time may be exceeded.
        jobs: Trainings at once.

    Examples:
        >>> further_seeds([4.0, 4.0], left=13.0, slack=1.0, jobs=2), further_seeds([4.0, 4.0], 2.5, 1.0, 2)
        (3, 0)
    """
    unused = {0: left}
    while left > slack and any(seconds) and min(unused.values()) > 0:
        count = len(unused)
        unused[count] = left - makespan([*seconds] * count, jobs)
    return min((count for count in unused if unused[count] >= -slack), key=lambda count: abs(unused[count]), default=0)


def final_steps(plan: Plan, left: float, jobs: int) -> int:
    """Steps of the reported trainings that use up the time left after the search; at least those of the longer rung.

    Args:
        plan: The plan.
        left: Seconds left.
        jobs: Trainings at once.
    """
    steps = largest_steps(lambda steps: makespan(plan.final_seconds(steps), jobs) <= left) or 0
    return max(min(steps, round(LONGEST * plan.steps)), *plan.rungs, LEAST_STEPS)


def second_rung(plan: Plan, pending: Sequence[float], left: float, jobs: int) -> int:
    """Steps of the longer rung, so that it and the reported trainings use up the time; at least those of the shortest.

    Args:
        plan: The plan.
        pending: Expected seconds of the trainings of the shortest rung that are not finished.
        left: Seconds left.
        jobs: Trainings at once.
    """
    fraction = RUNG_RATIO * plan.first_rung

    def fits(steps: int) -> bool:
        rung = [cost.search(round(fraction * steps)) for cost in plan.costs.values() for _ in range(PROMOTED)]
        return makespan([*pending, *rung], jobs) + makespan(plan.final_seconds(steps), jobs) <= left

    steps = min(largest_steps(fits) or LEAST_STEPS, round(LONGEST * plan.steps))
    return max(plan.rungs[0], round(fraction * steps))
