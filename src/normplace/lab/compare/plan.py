"""The plan of a comparison: which trainings run, how long they are, and what they cost.

The plan is written to a file before the first training, so that an interrupted comparison resumes with the same
trainings. With a time budget, the lengths of the longer rung and of the reported trainings are set again when they
begin, from the time that is left and the speed that was measured; then the file is written again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.lab.compare.budget import Budget, makespan
from normplace.lab.compare.config import CompareTrial
from normplace.lab.compare.identity import NO_IDENTITY, Identity, differing_part
from normplace.lab.compare.search import FIRST_RUNG, PROMOTED, RUNG_RATIO, RUNGS
from normplace.lab.compare.task import Task
from normplace.lab.report.text import duration, training_length

SEARCH_SEED = 1_000_000
"""Seed of the search, which no reported training has."""
SPEED_SHARE, SPEED_STEPS = 0.05, 30
"""Length of a training that measures the speed of a worker, as a fraction of a reported one, and its fewest steps."""
IDENTITY = "identity"
"""What identifies the user's code of a task, which its name and settings do not."""
GROWTH = 1
"""Learning rates by which grids are expected to grow."""


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

    def measured(self, step: float, rest: float) -> Cost:
        """The cost from the measured times of a step, and of all else that a training of the search does."""
        return dataclasses.replace(self.times(rest / self.search(0)), step=step)

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
        identities: What identifies each edit that is the user's code.
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
    identities: Mapping[str, Identity] = field(default_factory=dict)

    @property
    def rungs(self) -> tuple[int, ...]:
        """Steps of each rung of the search; none if there is one learning rate."""
        if len(self.rates) == 1:
            return ()
        first = self.first_rung * self.steps
        return max(1, round(first)), self.second_rung or max(1, round(RUNG_RATIO * first))

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens of one training step, if the task is a text."""
        settings = self.task.get("settings", {})
        return settings["batch"] * settings["context"] if "context" in settings else None

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
        """The reported trainings, seed by seed, so that an interrupted comparison has whole seeds."""
        steps = self.final_steps or self.steps
        return [
            self.trial(edit, best[edit], seed=seed, rung=RUNGS, steps=steps, evaluations=self.evaluations)
            for seed in range(self.seeds)
            for edit in self.edits
        ]

    def stages(self) -> Iterator[tuple[str, int, list[float]]]:
        """Name, steps and expected seconds of the trainings of each stage."""
        searches = {"all learning rates": len(self.rates) + GROWTH, f"the best {PROMOTED}, longer": PROMOTED}
        for length, (name, count) in zip(self.rungs, searches.items(), strict=False):
            yield name, length, [cost.search(length) for cost in self.costs.values() for _ in range(count)]
        steps = self.final_steps or self.steps
        yield "reported seeds", steps, self.final_seconds(steps)

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
            lines.append(f"  {name:18} {len(times):4} trainings of {steps:6} steps  {duration(wall):>8}")
        steps = [1000 * cost.step for cost in self.costs.values()]
        budget = Budget.parse(self.budget)
        lines.append(
            f"  expected time: {duration(total)} (budget: {budget}), {jobs} at once; a step takes {min(steps):.3g} to "
            f"{max(steps):.3g} ms"
        )
        if self.tokens_per_step:
            length = training_length(self.final_steps or self.steps, self.tokens_per_step)
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

        Raises:
            UsageError: If one differs.
        """
        for name, now in arguments.items():
            before = getattr(self, name)
            if before != now:
                raise UsageError(
                    f"{path} has a comparison with another {name} ({before}, now {now}): choose another --out."
                )

    def require_same_edits(self, path: Path, identities: Mapping[str, Identity]) -> None:
        """Check that the functions that this plan compares are the same now.

        Raises:
            UsageError: If one differs.
        """
        for name, identity in identities.items():
            if part := differing_part(_recorded(path, self.identities.get(name, {})), identity):
                raise UsageError(
                    f"{path} has results of another function {name!r}, with another {part}: give the edit another "
                    "name, or choose another --out."
                )

    def require_same_task(self, path: Path, task: Task, identity: Identity = NO_IDENTITY) -> None:
        """Check that this plan was made for the same task, with the same settings and data.

        Raises:
            UsageError: If it differs.
        """
        if part := differing_part(_recorded(path, self.task.get(IDENTITY, {})), identity):
            raise UsageError(
                f"{path} has a comparison of {self.task['name']} with another {part}: choose another --out."
            )
        as_read = json.loads(json.dumps(described(task)))
        before, now = ({**one.pop("settings", {}), **one} for one in (dict(self.task), as_read))
        # Notes describe what was found, such as held-out data, and a reference contains the settings.
        for name in (
            key for key in before if key not in {"notes", "reference", IDENTITY} and before[key] != now.get(key)
        ):
            raise UsageError(
                f"{path} has a comparison of {self.task['name']} with another {name} ({before[name]}, now "
                f"{now.get(name)}): choose another --out."
            )
        if self.task["reference"] != task.reference:
            raise UsageError(f"{path} has a comparison of another task: choose another --out.")


def _recorded(path: Path, identity: Any) -> Identity:
    """What a plan records about the user's code.

    Raises:
        UsageError: If an earlier version wrote it, which recorded one hash.
    """
    if not isinstance(identity, Mapping):
        raise UsageError(
            f"{path} has a comparison by an earlier version, which described functions in another way: choose another "
            "--out."
        )
    return identity


def described(task: Task, identity: Identity = NO_IDENTITY) -> dict[str, Any]:
    """What a plan records about a task."""
    return {**task.describe(), "reference": task.reference} | ({IDENTITY: dict(identity)} if identity else {})
