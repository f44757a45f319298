"""Policies and classical methods on real graphs: speed of dismantling, and spread of influence.

The committed results were recorded before policies scored in float64 with ties broken at random. Those of the policy
``ln``, whose scores are constant, depend on rounding errors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from normplace._shared.device import pick_device
from normplace.errors import UsageError, unknown
from normplace.lab.studies.postdeg.networks import convolution
from normplace.lab.tasks.data_files import find_file
from normplace.lab.trials.study import Outcome, Part
from normplace.placement.scale import Scale

if TYPE_CHECKING:
    from normplace.lab.tasks.selection import Graph
    from normplace.models.policy import Policy

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
TASKS = ("dismantling", "influence")
SEEDS = 50
"""Size of the seed set for influence."""
BETWEENNESS_NODES = 3000
"""Number of nodes up to which betweenness is recomputed after every removal."""
RADIUS_2_NODES = 10_000
"""Number of nodes up to which collective influence has radius 2; above, it has radius 1."""
LEARNED = {
    "ln": "policy: GAT, constant, LN",
    "postdeg": "policy: GAT, constant, PostDeg",
    "degree-input": "policy: mean, degree, LN",
    "degree-postdeg": "policy: mean, degree, PostDeg",
    "sum": "policy: sum, degree, LN",
}
"""Aggregation, input and norm of each policy."""
CLASSICAL = {
    "random": "random",
    "degree": "degree",
    "adaptive-degree": "degree, adaptive",
    "k-core": "k-core",
    "corehd": "CoreHD",
    "collective-influence": "collective influence",
    "pagerank": "PageRank",
    "betweenness": "betweenness",
    "ris": "RIS greedy",
}
ADAPTIVE = "+adaptive"


def titles() -> dict[str, str]:
    """Display names of all methods."""
    learned = {}
    for name, title in LEARNED.items():
        learned |= {name: title, name + ADAPTIVE: f"{title}, adaptive"}
    return CLASSICAL | learned


@dataclass(frozen=True)
class TopologyTrial:
    """One method on all graphs.

    Args:
        task: ``dismantling`` or ``influence``.
        method: A classical method, or a policy, which is applied once and adaptively in the same trial.
        seed: Random seed of training, randomized methods and cascades.
        steps: Number of training steps of a policy.
        graphs: Names of the graphs.
        simulations: Number of simulated cascades.
        device: Device of the policies: ``auto``, ``cpu`` or ``cuda``.
    """

    task: str
    method: str
    seed: int
    steps: int = 1000
    graphs: tuple[str, ...] = GRAPHS
    simulations: int = 2000
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        if self.method not in {**LEARNED, **CLASSICAL}:
            raise unknown("method", self.method, [*LEARNED, *CLASSICAL])
        if not self.graphs:
            raise UsageError("no graph is named: give at least one.")


def plan(scale: str) -> Iterator[TopologyTrial]:
    """Every method at ``full``, policies with three seeds; none below, where classical methods take minutes."""
    if scale != "full":
        return
    for task in TASKS:
        for method in (*CLASSICAL, *LEARNED):
            if (method == "ris") <= (task == "influence"):
                for seed in range(3 if method in LEARNED else 1):
                    yield TopologyTrial(task, method, seed)


def _file(name: str) -> Path | None:
    return find_file("", "topology", [f"{name}.npz"]) or find_file("", "graphs/topology", [f"{name}.npz"])


def why_unavailable(trial: TopologyTrial) -> str | None:
    """Why the trial cannot run: a graph or a package is missing; None if it can."""
    missing = [name for name in trial.graphs if _file(name) is None]
    if missing:
        return (
            f"the graph {missing[0]} is missing: put {missing[0]}.npz, with num_nodes and edges, into the folder "
            "'topology' of NORMPLACE_DATA."
        )
    try:
        convolution("mean")
        import normplace.lab.tasks.selection  # noqa: F401
    except UsageError as error:
        return str(error)
    return None


def run(trial: TopologyTrial) -> Outcome:
    """Rank the nodes of each graph and measure the order."""
    from normplace.lab.tasks.selection import adaptive_order, load_graph, ranking

    policy = _trained(trial) if trial.method in LEARNED else None
    metrics: dict[str, float] = {}
    for name in trial.graphs:
        path = _file(name)
        assert path is not None, "checked by why_unavailable()"
        graph = load_graph(path)
        if policy is None:
            metrics |= _measures(trial, name, graph, _classical_order(trial, graph))
            continue
        score = functools.partial(policy.score, seed=trial.seed)
        metrics |= _measures(trial, name, graph, ranking(graph, score(graph)))
        # Steps of a thousandth of the nodes changed R of adaptive degree by at most 1%; influence seeds come in tens.
        step, count = (max(1, graph.num_nodes // 1000), None) if trial.task == "dismantling" else (10, SEEDS)
        order = adaptive_order(graph, score, step, count)
        metrics |= _measures(trial, name + ADAPTIVE, graph, order)
    return Outcome(metrics=metrics)


def build_policy(method: str) -> Policy:
    """The untrained policy of a learned method: three blocks of width 32."""
    from normplace.models.policy import Policy

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
    from normplace.lab.tasks.selection import mixed_graphs
    from normplace.lab.tasks.selection.rewards import DismantlingReward, InfluenceReward
    from normplace.lab.train.reinforce import train_policy

    graph_generator = np.random.default_rng([trial.seed, 0])
    graphs = mixed_graphs(256, 40, 300, graph_generator)
    if trial.task == "dismantling":
        graphs = [_partly_dismantled(graph, graph_generator) for graph in graphs]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        policy = build_policy(trial.method).to(pick_device(trial.device))
    generator = torch.Generator().manual_seed(trial.seed)
    reward = DismantlingReward() if trial.task == "dismantling" else InfluenceReward(simulations=12)
    train_policy(policy, graphs, reward, steps=trial.steps, generator=generator)
    return policy


def _partly_dismantled(graph: Graph, generator: np.random.Generator) -> Graph:
    """With probability 1/2, remove up to a third of the nodes by adaptive degree, as adaptive scoring will see them."""
    from normplace.lab.tasks.selection import degree_order

    removed = np.zeros(graph.num_nodes, bool)
    if generator.random() < 0.5:
        count = int(generator.uniform(0, 1 / 3) * graph.num_nodes)
        removed[degree_order(graph, adaptive=True)[:count]] = True
    left, _ = graph.without(removed)
    return left if left.num_edges else graph


def _classical_order(trial: TopologyTrial, graph: Graph) -> NDArray[np.int64]:
    from normplace.lab.tasks import selection

    generator = np.random.default_rng(trial.seed)
    if trial.method == "betweenness":
        if graph.num_nodes <= BETWEENNESS_NODES:
            return selection.betweenness_order(graph, adaptive=True)
        return selection.betweenness_order(graph, sources=500, generator=generator)
    if trial.method == "ris":
        return selection.ris_greedy(graph, k=SEEDS, seed=trial.seed).seeds
    radius = 2 if graph.num_nodes <= RADIUS_2_NODES else 1
    orders = {
        "random": lambda: selection.random_order(graph, generator),
        "degree": lambda: selection.degree_order(graph),
        "adaptive-degree": lambda: selection.degree_order(graph, adaptive=True),
        "k-core": lambda: selection.core_order(graph),
        "corehd": lambda: selection.corehd_order(graph),
        "collective-influence": lambda: selection.collective_influence_order(graph, radius),
        "pagerank": lambda: selection.ranking(graph, selection.pagerank(graph)),
    }
    return orders[trial.method]()


def _measures(trial: TopologyTrial, name: str, graph: Graph, order: NDArray[np.int64]) -> dict[str, float]:
    from normplace.lab.tasks.selection import dismantle, reinsert, spread

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
