"""How long the trainings of a comparison are: from measured costs and a budget to a plan.

With a time budget, the lengths follow from the time that is left, first for all stages and then for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from normplace.errors import UsageError
from normplace.lab.compare.budget import LEAST_STEPS, Budget, largest_steps, makespan
from normplace.lab.compare.edits import Edit
from normplace.lab.compare.identity import NO_IDENTITY, Identity
from normplace.lab.compare.plan import GROWTH, Cost, Plan, described
from normplace.lab.compare.search import FIRST_RUNG, PROMOTED, RUNG_RATIO
from normplace.lab.compare.task import Task
from normplace.lab.report.text import duration

MOST_EVALUATIONS = 10
EVALUATION_SHARE = 0.1
"""Largest part of a reported training's time that is spent on validation during training, if the budget is a time."""
SEARCH_SHARE = 0.4
"""Largest part of a time budget that is planned for the search."""
SHORTEST_RUNG = 0.05
"""Shortest length of a rung, as a fraction of a reported training."""
TARGET = 0.99
"""Part of a time budget that is planned."""
LONGEST = 2.0
"""Largest factor by which reported trainings are lengthened after the search."""


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
    identity: Identity = NO_IDENTITY,
    on_gpu: bool = False,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Plan a comparison from measured costs.

    Raises:
        UsageError: If the budget is too small.
    """
    limit = Budget.parse(budget)
    recipes = {edit.name: edit.recipe for edit in edits}
    plan = Plan(
        task=described(task, identity),
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

    Examples:
        >>> first_rung(rates=5, seeds=5), first_rung(rates=5, seeds=3)
        (0.25, 0.2)
    """
    trainings = rates + GROWTH + RUNG_RATIO * PROMOTED  # of the shortest length, for each edit
    affordable = SEARCH_SHARE / (1 - SEARCH_SHARE) * seeds / trainings
    return round(min(FIRST_RUNG, max(SHORTEST_RUNG, affordable)), 3)


def fill_time(plan: Plan, left: float, jobs: int) -> Plan:
    """The plan with trainings as long as the time allows, or of the fewest steps."""
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


def at_speed(plan: Plan, slowdown: float) -> Plan:
    """The plan with the costs of a machine that is slower by a factor."""
    return dataclasses.replace(plan, costs={name: cost.times(slowdown) for name, cost in plan.costs.items()})


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
    """Steps of the reported trainings that use up the time left after the search; at least those of the longer rung."""
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
