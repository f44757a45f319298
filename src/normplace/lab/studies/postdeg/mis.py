"""Independent sets of the usual benchmark graphs: policies compared with the minimum degree and KaMIS.

ER-[700-800] are uniform graphs of 700 to 800 nodes, each pair connected with probability 0.15; RB-[200-300] and
RB-[800-1200] are instances of Model RB of so many nodes (20 to 24 cliques of 5 to 11 nodes, 40 to 54 of 20 to 24, with
a tightness of 0.3 to 1), drawn as by the published generator of these sets. Policies are trained on smaller graphs of
the same family.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.postdeg import extended
from normplace.lab.studies.postdeg.extended import ExtendedTrial
from normplace.lab.studies.postdeg.networks import missing_package, missing_solver
from normplace.lab.trials.study import Outcome, Part
from normplace.models.policy import Policy

if TYPE_CHECKING:
    from normplace.lab.tasks.selection import Graph

TASK = "independent-set"


@dataclass(frozen=True)
class Family:
    """A kind of graph.

    Args:
        title: Display name.
        kamis: Published mean size of KaMIS's sets (Sun, Yang 2023, arXiv 2302.08224, for ER; Zhang et al. 2023,
            arXiv 2305.17010, for RB).
        nodes: Smallest and largest number of nodes.
        groups: Smallest and largest number of cliques; None for uniform graphs.
        sizes: Smallest and largest size of a clique.
    """

    title: str
    kamis: float
    nodes: tuple[int, int]
    groups: tuple[int, int] | None = None
    sizes: tuple[int, int] = (0, 0)


FAMILIES = {
    "er-700-800": Family("ER-[700-800]", 44.87, (700, 800)),
    "rb-200-300": Family("RB-[200-300]", 20.10, (200, 300), (20, 24), (5, 11)),
    "rb-800-1200": Family("RB-[800-1200]", 43.15, (800, 1200), (40, 54), (20, 24)),
}
SMALLER = {
    "er-700-800": Family("", 0.0, (60, 150)),
    "rb-200-300": Family("", 0.0, (30, 150), (8, 14), (4, 10)),
    "rb-800-1200": Family("", 0.0, (30, 150), (8, 14), (4, 10)),
}
"""Training graphs of each family."""
PROBABILITY = 0.15
LEARNED = {
    "ln": "policy: constant, LN",
    "postdeg": "policy: constant, PostDeg",
    "degree-ln": "policy: degree, LN",
    "degree-postdeg": "policy: degree, PostDeg",
}
CLASSICAL = {"random": "random", "degree": "degree", "min-degree": "minimum degree", "kamis": "KaMIS"}


@dataclass(frozen=True)
class MisTrial:
    """One method on the graphs of one family and seed.

    Args:
        family: A key of :data:`FAMILIES`.
        method: A policy with softmax attention, or a classical method.
        seed: Random seed of the graphs, the training and the method.
        graphs: Number of test graphs.
        steps: Number of training steps of a policy.
        train_graphs: Number of training graphs.
        seconds: Time limit of KaMIS per graph, which it checks between rounds.
    """

    family: str
    method: str
    seed: int
    graphs: int = 16
    steps: int = 500
    train_graphs: int = 128
    seconds: float = 10.0

    def __post_init__(self) -> None:
        expect_choice("family", self.family, FAMILIES)
        expect_choice("method", self.method, LEARNED | CLASSICAL)
        expect_ranges(self, "graphs", "steps", "train_graphs", least=1)


def plan(scale: str) -> Iterator[MisTrial]:
    """All families with 16 graphs per seed at ``full``; the two smaller ones with four at ``laptop``; five seeds each.

    Seeds are the outer loop: an interrupted run has the same seeds of all methods.
    """
    families, seeds = tuple(FAMILIES), 5
    methods = (*CLASSICAL, *LEARNED)
    size: dict[str, Any] = {}
    if scale == "laptop":
        families, size = families[:2], {"graphs": 4, "steps": 150, "train_graphs": 64, "seconds": 1.0}
    elif scale == "smoke":
        families, methods, seeds = families[1:2], ("min-degree", "postdeg"), 2
        size = {"graphs": 1, "steps": 2, "train_graphs": 4}
    for seed in range(seeds):
        for family in families:
            for method in methods:
                yield MisTrial(family, method, seed, **size)


def draw(family: Family, count: int, generator: np.random.Generator) -> list[Graph]:
    """Graphs of a family, with shuffled ids."""
    from normplace.lab.tasks.selection import erdos_renyi, model_rb, shuffled

    graphs = []
    while len(graphs) < count:
        if family.groups is None:
            nodes = int(generator.integers(family.nodes[0], family.nodes[1] + 1))
            graph = erdos_renyi(nodes, PROBABILITY, generator)
        else:
            groups, size = (int(generator.integers(low, high + 1)) for low, high in (family.groups, family.sizes))
            tightness = float(generator.uniform(0.3, 1))
            if not family.nodes[0] <= groups * size <= family.nodes[1]:
                continue
            graph = model_rb(groups, size, tightness, generator)
        graphs.append(shuffled(graph, generator))
    return graphs


def run(trial: MisTrial) -> Outcome:
    """The mean size of the sets, and their share of the nodes."""
    from normplace.lab.tasks.selection import classical_order, kamis_set, ranking
    from normplace.lab.tasks.selection.rewards import IndependentSetReward

    graphs = draw(FAMILIES[trial.family], trial.graphs, np.random.default_rng([trial.seed, 1]))
    policy = _trained(trial) if trial.method in LEARNED else None
    shares = []
    for number, graph in enumerate(graphs):
        if trial.method == "kamis":
            shares.append(len(kamis_set(graph, trial.seconds, seed=trial.seed)) / graph.num_nodes)
            continue
        if policy is None:
            order = classical_order(graph, TASK, trial.method, seed=trial.seed * trial.graphs + number)
        else:
            order = ranking(graph, policy.score(graph, trial.seed))
        shares.append(float(IndependentSetReward().rewards(graph, order[None])[0]))
    sizes = [share * graph.num_nodes for share, graph in zip(shares, graphs, strict=True)]
    return Outcome(metrics={"size": float(np.mean(sizes)), "share": float(np.mean(shares))})


def _trained(trial: MisTrial) -> Policy:
    """The trained policy, in float64."""
    from normplace.lab.tasks.selection.rewards import IndependentSetReward

    graphs = draw(SMALLER[trial.family], trial.train_graphs, np.random.default_rng([trial.seed, 0]))
    features = "degree" if trial.method.startswith("degree") else "constant"
    source = "degree" if trial.method.endswith("postdeg") else ""
    policy = ExtendedTrial(TASK, trial.seed, features=features, source=source)
    return extended.trained(policy, graphs, IndependentSetReward(), trial.steps)


PART = Part(
    name="mis",
    config=MisTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{FAMILIES[trial.family].title}, {(LEARNED | CLASSICAL)[trial.method]}, seed {trial.seed}",
    unavailable_reason=lambda trial: missing_solver(trial.method) or missing_package("softmax"),
)
