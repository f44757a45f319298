"""Policies for three tasks, trained and tested on random graphs, with a topology scale in any slot of the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from normplace.errors import UsageError, expect_at_least, unknown
from normplace.lab.trials.study import Outcome, Part
from normplace.norms import LayerNorm
from normplace.placement.scale import Scale

TASKS = {
    "influence": "influence maximization",
    "dismantling": "network dismantling",
    "independent-set": "maximum independent set",
}
AGGREGATIONS = {"softmax": "softmax attention", "mean": "mean", "sum": "sum"}
FEATURES = ("constant", "degree", "random")
SLOTS = {"none": "no scale", "before": "before the norm", "after": "after the norm", "head": "at the head only"}
POWERS = (-1.0, -0.5, 0.5, 1.0)
TINY, USUAL = 1e-12, 1e-5
EPS = (TINY, 1e-8, USUAL, 1e-3, 1e-1)
HEADS = 4


@dataclass(frozen=True)
class SelectionTrial:
    """One policy, trained and tested.

    Args:
        task: What an order of nodes is rewarded for.
        seed: Of the graphs, the initial weights and the training.
        aggregation: How the convolution joins messages: GAT's softmax attention, or GraphSAGE's mean or sum.
        features: What a node brings.
        slot: Where the scale stands; ``none`` leaves it out.
        power: The exponent of the scale.
        eps: Of the LayerNorms.
        source: The scale's scalar; ``constant`` is one number for a whole graph.
        gate: Empty, or what is trained in the scale's slot: ``learned`` or ``mlp``.
        extra_norm: Whether one more LayerNorm stands between the last block and the head.
        steps: Of training.
        train_graphs: Drawn to train on, of 30 to 80 nodes.
        test_graphs: Drawn to test on, of 100 to 200 nodes.
    """

    task: str
    seed: int
    aggregation: str = "softmax"
    features: str = "constant"
    slot: str = "after"
    power: float = -1.0
    eps: float = USUAL
    source: str = "degree"
    gate: str = ""
    extra_norm: bool = False
    steps: int = 250
    train_graphs: int = 64
    test_graphs: int = 32

    def __post_init__(self) -> None:
        for kind, name, options in (
            ("task", self.task, TASKS),
            ("aggregation", self.aggregation, AGGREGATIONS),
            ("input", self.features, FEATURES),
            ("slot", self.slot, SLOTS),
        ):
            if name not in options:
                raise unknown(kind, name, options)
        expect_at_least(1, self, "steps", "train_graphs", "test_graphs")


def convolution(aggregation: str) -> Callable[[int, int], nn.Module]:
    """PyG's convolution with that aggregation, from two widths.

    Raises:
        UsageError: If PyG is not installed.
    """
    try:
        from torch_geometric.nn import GATConv, SAGEConv
    except ImportError as error:
        raise UsageError("the study's convolutions are PyG's: pip install 'normplace[graphs]'.") from error
    if aggregation == "softmax":
        return lambda into, out: GATConv(into, out // HEADS, heads=HEADS)
    return partial(SAGEConv, aggr=aggregation)


def stack_options(trial: SelectionTrial) -> dict[str, Any]:
    """What the trial asks of a :class:`normplace.models.GraphStack`: PostDeg's block, norms after the addition."""
    scale = None
    if trial.slot != "none":
        side = "before" if trial.slot == "before" else "after"
        scale = Scale(trial.source, trial.power, side, "final" if trial.slot == "head" else None)
    return {
        "placement": "post",
        "norm": partial(LayerNorm, eps=trial.eps),
        "scale": scale,
        "gate": trial.gate or None,
    }


def grid() -> Iterator[dict[str, Any]]:
    """The cells of the map: aggregation × input × slot, then powers and eps where nothing else carries degree."""
    for aggregation in AGGREGATIONS:
        for features in FEATURES:
            for slot in SLOTS:
                yield {"aggregation": aggregation, "features": features, "slot": slot}
        for slot in ("before", "after", "head"):
            for power in POWERS[1:]:
                yield {"aggregation": aggregation, "slot": slot, "power": power}
    for eps in EPS:
        if eps != USUAL:
            for slot in ("none", "before", "after"):
                yield {"slot": slot, "eps": eps}
            yield {"aggregation": "mean", "slot": "before", "eps": eps}


def falsifiers(features: str) -> Iterator[dict[str, Any]]:
    """The cells that would refute the paper's reading, in our definitions."""
    yield {"features": features, "source": "constant"}
    yield {"features": features, "extra_norm": True}
    for gate in ("learned", "mlp"):
        yield {"features": features, "gate": gate}
    for source in ("k-core", "pagerank"):
        yield {"features": features, "source": source}


def _laptop_cells() -> Iterator[dict[str, Any]]:
    """The headline cells and the falsifiers."""
    for slot in ("none", "before", "after"):
        yield {"slot": slot}
        for other in ({"features": "degree"}, {"aggregation": "sum"}):
            if slot != "before":
                yield {**other, "slot": slot}
    yield {"slot": "before", "eps": TINY}
    yield from falsifiers("constant")


def plan(scale: str) -> Iterator[SelectionTrial]:
    """The whole map with ten seeds at ``full``; its headline cells and the falsifiers with five at ``laptop``."""
    size: dict[str, Any] = {}
    if scale == "full":
        cells, seeds = [*grid(), *falsifiers("constant"), *falsifiers("degree")], 10
    elif scale == "laptop":
        cells, seeds, size = list(_laptop_cells()), 5, {"steps": 150}
    else:
        cells, seeds = [{"slot": "none"}, {"slot": "after"}], 2
        size = {"steps": 3, "train_graphs": 4, "test_graphs": 4}
    for task in TASKS:
        for cell in cells:
            for seed in range(seeds):
                yield SelectionTrial(task=task, seed=seed, **cell, **size)


def ready(trial: SelectionTrial) -> str | None:
    """Why the trial cannot run here, if so: a package is missing."""
    try:
        convolution(trial.aggregation)
        import normplace.lab.tasks.selection  # noqa: F401
    except UsageError as error:
        return str(error)
    return None


def run(trial: SelectionTrial) -> Outcome:
    """Train a policy on small graphs, then order the nodes of larger ones by its scores."""
    import numpy as np

    from normplace.lab.tasks.selection import mixed_graphs, ranking
    from normplace.lab.tasks.selection.rewards import REWARDS, InfluenceReward
    from normplace.lab.train.reinforce import train_policy
    from normplace.models.policy import Policy

    reward = REWARDS[trial.task]
    known = mixed_graphs(trial.train_graphs, 30, 80, np.random.default_rng([trial.seed, 0]))
    unseen = mixed_graphs(trial.test_graphs, 100, 200, np.random.default_rng([trial.seed, 1]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        policy = Policy(convolution(trial.aggregation), 32, 3, features=trial.features, **stack_options(trial))
    if trial.extra_norm:
        # A placement refuses a final norm right after a stream norm; here the scale stands between the two.
        policy.stack.final_norm = LayerNorm(32, eps=trial.eps)
    generator = torch.Generator().manual_seed(trial.seed)
    history = train_policy(policy, known, reward, steps=trial.steps, generator=generator)
    measure = InfluenceReward(simulations=400) if trial.task == "influence" else reward
    values = [
        float(measure.rewards(graph, ranking(graph, policy.score(graph, trial.seed))[None], seed=number)[0])
        for number, graph in enumerate(unseen)
    ]
    tail = history[-max(1, len(history) // 10) :]
    found = float(np.mean(values))
    return Outcome(
        metrics={
            "value": 1 - found if trial.task == "dismantling" else found,
            "train_reward": float(np.mean(tail)),
        }
    )


def label(trial: SelectionTrial) -> str:
    """A few words for progress."""
    return f"{trial.task}, {trial.aggregation}, {trial.features} input, {trial.slot}, seed {trial.seed}"


PART = Part(name="selection", config=SelectionTrial, plan=plan, run=run, label=label, ready=ready)
