"""Policies with and without PostDeg, trained on small random graphs and applied once to real ones.

The tasks are measured as in training: influence chooses a tenth of the nodes in both. The trial also measures a random
order and the order of degrees on the same graphs, in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.studies.postdeg import extended
from normplace.lab.studies.postdeg.extended import ExtendedTrial
from normplace.lab.studies.postdeg.networks import missing_package, reward_of, task_score
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.studies.postdeg.topologies import GRAPHS, SMALLER, graph_file, missing_graph
from normplace.lab.trials.study import Outcome, Part
from normplace.models.policy import FEATURES

INPUTS = ("constant", "random", "noisy-degree", "coarse-degree", "degree")
POLICY, REFERENCES = "policy", ("random", "degree")


@dataclass(frozen=True)
class TransferTrial:
    """One policy with softmax attention on all graphs.

    Args:
        task: The task whose score rewards an order of nodes.
        seed: Random seed of the training graphs, the initial weights, the training and the cascades.
        features: Input features of the nodes.
        postdeg: Whether the inverse degree is multiplied in after every LayerNorm.
        steps: Number of training steps.
        train_graphs: Number of training graphs, of 40 to 300 nodes.
        graphs: Names of the real graphs.
        simulations: Number of simulated cascades in the test.
    """

    task: str
    seed: int
    features: str = "constant"
    postdeg: bool = True
    steps: int = 500
    train_graphs: int = 256
    graphs: tuple[str, ...] = GRAPHS
    simulations: int = 100

    def __post_init__(self) -> None:
        expect_choice("task", self.task, TASKS)
        expect_choice("input", self.features, FEATURES)
        expect_ranges(self, "steps", "train_graphs", "simulations", least=1)
        if not self.graphs:
            raise UsageError("no graph is named: give at least one.")


def plan(scale: str) -> Iterator[TransferTrial]:
    """All graphs and inputs at ``full``; four graphs, two inputs and shorter training at ``laptop``; five seeds each.

    Seeds are the outer loop: an interrupted run has the same seeds of all cells.
    """
    sizes: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "full": (INPUTS, {}),
        "laptop": (("constant", "noisy-degree"), {"steps": 150, "train_graphs": 64, "graphs": SMALLER}),
    }
    inputs, size = sizes.get(scale, ((), {}))
    for seed in range(5):
        for task in TASKS:
            for features in inputs:
                for postdeg in (False, True):
                    yield TransferTrial(task, seed, features, postdeg, **size)


def why_unavailable(trial: TransferTrial) -> str | None:
    """Why the trial cannot run: a graph or a package is missing; None if it can."""
    return missing_graph(trial.graphs) or missing_package("softmax")


def run(trial: TransferTrial) -> Outcome:
    """Train on random graphs, rank the nodes of every real graph once, and measure the order."""
    from normplace.lab.tasks.selection import classical_order, load_graph, mixed_graphs, ranking

    graphs = mixed_graphs(trial.train_graphs, 40, 300, np.random.default_rng([trial.seed, 0]))
    source = "degree" if trial.postdeg else ""
    untrained = ExtendedTrial(trial.task, trial.seed, features=trial.features, source=source)
    policy = extended.trained(untrained, graphs, reward_of(trial.task, simulations=12), trial.steps)
    measure = reward_of(trial.task, trial.simulations)
    metrics: dict[str, float] = {}
    for name in trial.graphs:
        path = graph_file(name)
        assert path is not None, "checked by why_unavailable()"
        graph = load_graph(path)
        classical = [classical_order(graph, trial.task, method, budget=1, seed=trial.seed) for method in REFERENCES]
        orders = [ranking(graph, policy.score(graph, trial.seed)), *classical]
        values = measure.rewards(graph, np.stack(orders), seed=trial.seed)
        for method, value in zip((POLICY, *REFERENCES), values, strict=True):
            metrics[f"{method}/{name}"] = float(task_score(trial.task, value))
    return Outcome(metrics=metrics)


PART = Part(
    name="transfer",
    config=TransferTrial,
    plan=plan,
    run=run,
    label=lambda trial: (
        f"{trial.task}, {trial.features} input, {'PostDeg' if trial.postdeg else 'LN'}, seed {trial.seed}"
    ),
    unavailable_reason=why_unavailable,
)
