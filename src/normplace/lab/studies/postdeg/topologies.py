"""Policies and classical methods on real graphs: speed of dismantling, spread of influence, and independent sets."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from normplace._shared.device import pick_device
from normplace._shared.seeding import seeded
from normplace.errors import UsageError, expect_choice
from normplace.lab.studies.postdeg.networks import (
    FLOAT32,
    FLOAT64,
    SCORINGS,
    missing_package,
    missing_solver,
    reward_of,
    scores,
)
from normplace.lab.tasks.data_files import find_file
from normplace.lab.tasks.selection_names import METHODS, TASKS, methods_of
from normplace.lab.trials.config import ADDED_LATER
from normplace.lab.trials.study import Outcome, Part
from normplace.models.convolutions import convolution
from normplace.models.policy import Policy
from normplace.placement.scale import Scale

if TYPE_CHECKING:
    from normplace.lab.tasks.selection import Graph

GRAPHS = (
    "advogato",
    "cit-HepPh",
    "dimacs10-polblogs",
    "email-EuAll",
    "internet-topology",
    "loc-brightkite",
    "p2p-Gnutella31",
    "petster-hamster",
    "soc-Epinions1",
)
SMALLER = ("advogato", "dimacs10-polblogs", "internet-topology", "petster-hamster")
"""The graphs that a laptop dismantles adaptively in minutes."""
SEEDS = 50
"""Size of the seed set for influence."""
LEARNED = {
    "ln": "policy: GAT, constant, LN",
    "postdeg": "policy: GAT, constant, PostDeg",
    "degree-input": "policy: mean, degree, LN",
    "degree-postdeg": "policy: mean, degree, PostDeg",
    "sum": "policy: sum, degree, LN",
}
"""Aggregation, input and norm of each policy."""
CLASSICAL = {name: method.title for name, method in METHODS.items()}
REPEATED = ("random", *LEARNED)
"""Methods that are applied once and adaptively, with several seeds."""
ADAPTIVE = "+adaptive"
DECISIVE = {
    *(("influence", method) for method in LEARNED),
    ("independent-set", "ln"),
    *(("dismantling", method) for method in ("ln", "degree-input", "degree-postdeg")),
}
"""Tasks and policies that decide a claim."""


def titles() -> dict[str, str]:
    """Display names of all methods."""
    named = CLASSICAL | LEARNED
    return {
        key: title + suffix
        for name, title in named.items()
        for key, suffix in {name: "", **({name + ADAPTIVE: ", adaptive"} if name in REPEATED else {})}.items()
    }


@dataclass(frozen=True)
class TopologyTrial:
    """One method on all graphs.

    Args:
        task: ``dismantling``, ``influence`` or ``independent-set``.
        method: A classical method, or a policy. Policies and the random order are applied once and, except for
            independent sets, adaptively in the same trial.
        seed: Random seed of training, randomized methods and cascades.
        steps: Number of training steps of a policy.
        graphs: Names of the graphs.
        simulations: Number of simulated cascades.
        device: Device of the policies: ``auto``, ``cpu`` or ``cuda``.
        scoring: How scores become an order; a key of :data:`normplace.lab.studies.postdeg.networks.SCORINGS`.
    """

    task: str
    method: str
    seed: int
    steps: int = 1000
    graphs: tuple[str, ...] = GRAPHS
    simulations: int = 2000
    device: str = "auto"
    scoring: str = field(default=FLOAT32, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        expect_choice("scoring", self.scoring, SCORINGS)
        expect_choice("task", self.task, TASKS)
        allowed = [*LEARNED, *methods_of(self.task)]
        expect_choice("method", self.method, allowed)
        if not self.graphs:
            raise UsageError("no graph is named: give at least one.")


def plan(scale: str) -> Iterator[TopologyTrial]:
    """All graphs at ``full``; four smaller ones and shorter training at ``laptop``.

    At ``full``, the policy whose nodes all score equally, and independent sets, are scored in float64; the others keep
    their records in float32. Policies that decide a claim have five seeds, the others three. The policy whose nodes all
    score equally dismantles the smaller graphs only: the nine would take 20 minutes per seed. It is compared with
    random orders of five more seeds; that of the first was recorded before it was also applied adaptively.
    """
    if scale == "laptop":
        for seed in range(5):
            for task in TASKS:
                for method in (*methods_of(task), *LEARNED):
                    if method in REPEATED or seed == 0:
                        yield TopologyTrial(task, method, seed, steps=300, graphs=SMALLER, scoring=FLOAT64)
    if scale == "full":
        for task in ("influence", "independent-set", "dismantling"):
            for method in (*methods_of(task), *LEARNED):
                constant = method == "ln"
                scoring = FLOAT64 if constant or task == "independent-set" else FLOAT32
                graphs = SMALLER if constant and task == "dismantling" else GRAPHS
                for seed in range((5 if (task, method) in DECISIVE else 3) if method in LEARNED else 1):
                    yield TopologyTrial(task, method, seed, graphs=graphs, scoring=scoring)
        for seed in range(1, 6):
            yield TopologyTrial("influence", "random", seed)
            yield TopologyTrial("dismantling", "random", seed, graphs=SMALLER)


def graph_file(name: str) -> Path | None:
    """The file of a real graph; None if there is none."""
    return find_file("", "topology", [f"{name}.npz"]) or find_file("", "graphs/topology", [f"{name}.npz"])


def missing_graph(names: Sequence[str]) -> str | None:
    """What to do about the first graph that has no file; None if all have one."""
    missing = next((name for name in names if graph_file(name) is None), None)
    if missing is None:
        return None
    return (
        f"the graph {missing} is missing: put {missing}.npz, with num_nodes and edges, into the folder 'topology' of "
        "NORMPLACE_DATA."
    )


def why_unavailable(trial: TopologyTrial) -> str | None:
    """Why the trial cannot run: a graph or a package is missing; None if it can."""
    return missing_graph(trial.graphs) or missing_package("mean") or missing_solver(trial.method)


def run(trial: TopologyTrial) -> Outcome:
    """Rank the nodes of each graph and measure the order."""
    from normplace.lab.tasks.selection import adaptive_order, classical_order, load_graph, ranking

    policy = _trained(trial) if trial.method in LEARNED else None
    metrics: dict[str, float] = {}
    for name in trial.graphs:
        path = graph_file(name)
        assert path is not None, "checked by why_unavailable()"
        graph = load_graph(path)
        if policy is None:
            score = functools.partial(_random_scores, seed=trial.seed)
            order = classical_order(graph, trial.task, trial.method, budget=SEEDS, seed=trial.seed)
        else:
            score = functools.partial(scores, policy, seed=trial.seed, scoring=trial.scoring)
            order = ranking(graph, score(graph))
        metrics |= _measures(trial, name, graph, order)
        if trial.task != "independent-set" and trial.method in REPEATED:
            # Steps of a thousandth of the nodes changed R of adaptive degree by at most 1%; influence seeds come in
            # tens.
            step, count = (max(1, graph.num_nodes // 1000), None) if trial.task == "dismantling" else (10, SEEDS)
            metrics |= _measures(trial, name + ADAPTIVE, graph, adaptive_order(graph, score, step, count))
    return Outcome(metrics=metrics)


def _random_scores(graph: Graph, seed: int) -> NDArray[np.float64]:
    """Random scores, other ones after every removal: adaptive orders leave out nodes that have lost all edges."""
    return np.random.default_rng([seed, graph.num_nodes, graph.num_edges]).random(graph.num_nodes)


def build_policy(method: str) -> Policy:
    """The untrained policy of a learned method: three blocks of width 32."""
    scale = Scale("degree", -1.0) if method in ("postdeg", "degree-postdeg") else None
    attention = method in ("ln", "postdeg")
    aggregation = "softmax" if attention else "sum" if method == "sum" else "mean"
    return Policy(
        convolution(aggregation),
        32,
        3,
        features="constant" if attention else "degree",
        placement="post",
        norm="layer",
        scale=scale,
    )


def _trained(trial: TopologyTrial) -> Policy:
    from normplace.lab.tasks.selection import mixed_graphs, partly_dismantled
    from normplace.lab.train.reinforce import train_policy

    graph_generator = np.random.default_rng([trial.seed, 0])
    graphs = mixed_graphs(256, 40, 300, graph_generator)
    if trial.task == "dismantling":
        graphs = [partly_dismantled(graph, graph_generator) for graph in graphs]
    with seeded(trial.seed):
        policy = build_policy(trial.method).to(pick_device(trial.device))
    generator = torch.Generator().manual_seed(trial.seed)
    train_policy(policy, graphs, reward_of(trial.task, simulations=12), steps=trial.steps, generator=generator)
    return policy


def _measures(trial: TopologyTrial, name: str, graph: Graph, order: NDArray[np.int64]) -> dict[str, float]:
    from normplace.lab.tasks.selection import dismantle, reinsert, spread
    from normplace.lab.tasks.selection.rewards import IndependentSetReward

    if trial.task == "independent-set":
        return {f"set/{name}": float(IndependentSetReward().rewards(graph, order[None])[0])}
    if trial.task == "influence":
        reached = spread(graph, order[:SEEDS], simulations=trial.simulations, seed=trial.seed)
        return {f"spread/{name}": reached.mean / graph.num_nodes}
    plain, mended = dismantle(graph, order), dismantle(graph, reinsert(graph, order, share=0.01))
    counts = {"to_10%": plain.removals_to(0.1), "to_1%": plain.removals_to(0.01)}
    counts["to_1%_reinserted"] = mended.removals_to(0.01)
    shares = {f"{key}/{name}": float(count or 0) / graph.num_nodes for key, count in counts.items()}
    return {f"R/{name}": plain.R, f"AUC/{name}": plain.auc, **shares}


PART = Part(
    name="topologies",
    config=TopologyTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.task}, {trial.method}, seed {trial.seed}",
    unavailable_reason=why_unavailable,
)
