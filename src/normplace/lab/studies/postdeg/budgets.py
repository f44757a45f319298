"""Influence policies trained with the share of seeds, sizes and degree tails that they are tested with.

Graphs are configuration models whose degrees follow power laws with the exponents of real graphs. A trial is trained
with one share of seeds and tested with the same or another one on unseen graphs. Trials that differ in the share of
the test alone have the same training, which runs once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.postdeg.networks import missing_package
from normplace.lab.studies.postdeg.topologies import LEARNED, build_policy
from normplace.lab.trials.study import Outcome, Part
from normplace.models.policy import Policy

if TYPE_CHECKING:
    from normplace.lab.tasks.selection import Graph

METHODS = ("degree-input", "degree-postdeg", *(name for name in LEARNED if not name.startswith("degree-")))
"""Those of the claims come first."""
SHARES = (0.005, 0.02, 0.1)
USUAL = 0.1
"""The share of seeds that the other parts train with."""
REFERENCES = ("ris", "degree", "random")


@dataclass(frozen=True)
class BudgetTrial:
    """One policy, trained with one share of seeds and tested with one.

    Args:
        method: A policy of the part ``topologies``.
        seed: Random seed of graphs, weights and training.
        train_share: Share of the nodes that are seeds in training.
        test_share: The same in the test.
        nodes: Largest number of nodes of a graph; the smallest is half of it.
        steps: Number of training steps.
        train_graphs: Number of training graphs.
        test_graphs: Number of unseen graphs.
        simulations: Number of simulated cascades in the test.
    """

    method: str
    seed: int
    train_share: float
    test_share: float
    nodes: int = 10_000
    steps: int = 600
    train_graphs: int = 64
    test_graphs: int = 8
    simulations: int = 400

    def __post_init__(self) -> None:
        expect_choice("method", self.method, LEARNED)
        expect_ranges(self, "steps", "train_graphs", "test_graphs", "simulations", least=1)
        expect_ranges(self, "nodes", least=20)
        expect_ranges(self, "train_share", "test_share", above=0, most=1)


def plan(scale: str) -> Iterator[BudgetTrial]:
    """Matched shares, and policies of the usual share tested with smaller ones."""
    sizes = {
        "full": (10, {}),
        "laptop": (5, {"nodes": 1000, "steps": 100, "train_graphs": 32, "simulations": 200}),
        "smoke": (2, {"nodes": 60, "steps": 2, "train_graphs": 4, "test_graphs": 2, "simulations": 10}),
    }
    seeds, size = sizes[scale]
    methods = METHODS if scale == "full" else METHODS[:2]
    pairs = [(share, share) for share in SHARES] + [(USUAL, share) for share in SHARES if share != USUAL]
    for seed in range(seeds):
        for method in methods[:1] if scale == "smoke" else methods:
            for train_share, test_share in pairs:
                yield BudgetTrial(method, seed, train_share, test_share, **size)


def heavy_tailed(count: int, nodes: int, generator: np.random.Generator) -> list[Graph]:
    """Configuration models with exponents from 2 to 3, smallest degrees from 1 to 3 and half to all of the nodes."""
    from normplace.lab.tasks.selection import powerlaw_configuration

    return [
        powerlaw_configuration(
            int(generator.integers(nodes // 2, nodes + 1)),
            float(generator.uniform(2, 3)),
            int(generator.integers(1, 4)),
            generator,
        )
        for _ in range(count)
    ]


def run(trial: BudgetTrial) -> Outcome:
    """Train with one share of seeds, test with the other, and compare with classical methods on the same graphs."""
    return test(trial, train(trial))


def run_together(trials: Sequence[BudgetTrial]) -> list[Outcome]:
    """The outcomes of several trials; those with the same training share it."""
    policies: dict[BudgetTrial, Policy] = {}
    outcomes = []
    for trial in trials:
        training = replace(trial, test_share=trial.train_share)
        if training not in policies:
            policies[training] = train(training)
        outcomes.append(test(trial, policies[training]))
    return outcomes


def train(trial: BudgetTrial) -> Policy:
    """The trained policy of a trial; it does not depend on the share of the test."""
    from normplace.lab.tasks.selection.rewards import InfluenceReward
    from normplace.lab.train.reinforce import train_policy

    graphs = heavy_tailed(trial.train_graphs, trial.nodes, np.random.default_rng([trial.seed, 0]))
    with seeded(trial.seed):
        policy = build_policy(trial.method)
    generator = torch.Generator().manual_seed(trial.seed)
    reward = InfluenceReward(trial.train_share, simulations=8)
    train_policy(policy, graphs, reward, steps=trial.steps, batch_size=4, generator=generator)
    return policy


def test(trial: BudgetTrial, policy: Policy) -> Outcome:
    """The mean share of the nodes that the seeds of a policy and of classical methods reach on unseen graphs."""
    from normplace.lab.tasks.selection import classical_order, ranking, spread
    from normplace.lab.tasks.selection.rewards import InfluenceReward

    reached: dict[str, list[float]] = {name: [] for name in ("policy", *REFERENCES)}
    for graph in heavy_tailed(trial.test_graphs, trial.nodes, np.random.default_rng([trial.seed, 1])):
        budget = InfluenceReward(trial.test_share).length(graph)
        orders = {"policy": ranking(graph, policy.score(graph, trial.seed))}
        for name in REFERENCES:
            orders[name] = classical_order(graph, "influence", name, budget=budget, seed=trial.seed)
        for name, order in orders.items():
            result = spread(graph, order[:budget], simulations=trial.simulations, seed=trial.seed)
            reached[name].append(result.mean / graph.num_nodes)
    means = {name: float(np.mean(values)) for name, values in reached.items()}
    return Outcome(metrics={"spread": means["policy"], **{name: means[name] for name in REFERENCES}})


PART = Part(
    name="budgets",
    config=BudgetTrial,
    plan=plan,
    run=run,
    label=lambda trial: (
        f"{trial.method}, trained with {trial.train_share:g}, tested with {trial.test_share:g}, seed {trial.seed}"
    ),
    unavailable_reason=lambda trial: missing_package("mean"),
    run_seeds=run_together,
    seeds_at_once=len(SHARES),  # the shares of the test that one policy is tested with
    may_differ=("test_share",),
)
