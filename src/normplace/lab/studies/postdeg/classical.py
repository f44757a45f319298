"""Classical methods on the random test graphs of the selection policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.postdeg.networks import missing_selection, missing_solver, reward_of, task_score, test_graphs
from normplace.lab.tasks.selection_names import TASKS, methods_of
from normplace.lab.trials.study import Outcome, Part

RANDOM_ORDERS = 20
"""Number of random orders per graph, whose mean is the score of the method ``random``."""


@dataclass(frozen=True)
class ClassicalTrial:
    """One classical method on the test graphs of one seed.

    Args:
        task: The task whose score rewards an order of nodes.
        method: The method.
        seed: Random seed of the graphs and of the method.
        test_graphs: Number of test graphs, of 100 to 200 nodes.
    """

    task: str
    method: str
    seed: int
    test_graphs: int = 32

    def __post_init__(self) -> None:
        expect_choice("method", self.method, methods_of(self.task))
        expect_ranges(self, "test_graphs", least=1)


def plan(scale: str) -> Iterator[ClassicalTrial]:
    """Every method, with the seeds and test graphs of the policies; two methods at ``smoke``."""
    seeds, graphs = {"full": (10, 32), "laptop": (5, 32)}.get(scale, (2, 4))
    for task in TASKS:
        for method in ("random", "degree") if scale == "smoke" else methods_of(task):
            for seed in range(seeds):
                yield ClassicalTrial(task, method, seed, graphs)


def run(trial: ClassicalTrial) -> Outcome:
    """Order the nodes of each test graph and measure the order as the policies' orders are measured."""
    from normplace.lab.tasks.selection import classical_order

    reward = reward_of(trial.task, simulations=400)
    graphs = test_graphs(trial.test_graphs, trial.seed)
    repeats = RANDOM_ORDERS if trial.method == "random" else 1
    values = []
    for number, graph in enumerate(graphs):
        orders = []
        for repeat in range(repeats):
            seed = (trial.seed * len(graphs) + number) * repeats + repeat
            order = classical_order(graph, trial.task, trial.method, budget=reward.length(graph), seed=seed)
            rest = np.setdiff1d(np.arange(graph.num_nodes), order)  # RIS greedy chooses seeds only
            orders.append(np.concatenate([order, rest]))
        values.append(reward.rewards(graph, np.stack(orders), seed=number).mean())
    return Outcome(metrics={"value": task_score(trial.task, float(np.mean(values)))})


PART = Part(
    name="classical",
    config=ClassicalTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.task}, {trial.method}, seed {trial.seed}",
    unavailable_reason=lambda trial: missing_selection() or missing_solver(trial.method),
)
