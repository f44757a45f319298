"""Node-selection policies for three tasks, trained and tested on random graphs, with a topology scale in any slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.postdeg.networks import (
    FLOAT32,
    FLOAT64,
    SCORINGS,
    SLOTS,
    mean_score,
    missing_package,
    scores,
    test_graphs,
    training_graphs,
)
from normplace.lab.trials.config import ADDED_LATER
from normplace.lab.trials.study import Outcome, Part
from normplace.models.convolutions import AGGREGATIONS, convolution
from normplace.models.policy import Policy
from normplace.norms import LayerNorm
from normplace.placement.scale import Scale

TASKS = {
    "influence": "influence maximization",
    "dismantling": "network dismantling",
    "independent-set": "maximum independent set",
}
FEATURES = ("constant", "degree", "random")
POWERS = (-1.0, -0.5, 0.5, 1.0)
TINY, USUAL = 1e-12, 1e-5
EPS = (TINY, 1e-8, USUAL, 1e-3, 1e-1)


@dataclass(frozen=True)
class SelectionTrial:
    """One policy, trained and tested.

    Args:
        task: The task whose score rewards an order of nodes.
        seed: Random seed of the graphs, the initial weights and the training.
        aggregation: Aggregation of the convolution: GAT's softmax attention, or GraphSAGE's mean or sum.
        features: Input features of the nodes.
        slot: Slot of the scale; ``none`` for no scale.
        power: Exponent of the scale.
        eps: eps of the LayerNorms.
        source: Scalar of the scale; ``constant`` is one number per graph.
        gate: Learned gate in the scale's slot, ``learned`` or ``mlp``; empty for none.
        extra_norm: Whether another LayerNorm is placed between the last block and the head.
        steps: Number of training steps.
        train_graphs: Number of training graphs, of 30 to 80 nodes.
        test_graphs: Number of test graphs, of 100 to 200 nodes.
        scoring: How scores become an order; a key of :data:`normplace.lab.studies.postdeg.networks.SCORINGS`.
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
    scoring: str = field(default=FLOAT32, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        expect_choice("task", self.task, TASKS)
        expect_choice("aggregation", self.aggregation, AGGREGATIONS)
        expect_choice("input", self.features, FEATURES)
        expect_choice("slot", self.slot, SLOTS)
        expect_choice("scoring", self.scoring, SCORINGS)
        expect_ranges(self, "steps", "train_graphs", "test_graphs", least=1)


def stack_options(trial: SelectionTrial) -> dict[str, Any]:
    """Arguments of :class:`normplace.models.GraphStack` for the trial: PostDeg's block, with the norm after the add."""
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
    """The cells of the map: aggregation × input × slot, then powers and eps with a constant input."""
    for aggregation in AGGREGATIONS:
        for features in FEATURES:
            for slot in SLOTS:
                yield {"aggregation": aggregation, "features": features, "slot": slot}
        for slot in ("before", "after", "head"):
            for power in POWERS[1:]:
                yield {"aggregation": aggregation, "slot": slot, "power": power}
    for eps in EPS:
        if eps != USUAL:
            for slot in ("before", "after"):
                yield {"slot": slot, "eps": eps}
            yield {"aggregation": "mean", "slot": "before", "eps": eps}


def falsifiers(features: str) -> Iterator[dict[str, Any]]:
    """The cells of the paper's four falsifiers, as we define them."""
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
    yield {"aggregation": "mean", "slot": "none"}
    yield from falsifiers("constant")


def scores_are_equal(trial: SelectionTrial) -> bool:
    """Whether nothing distinguishes the nodes of a graph but rounding: no input, aggregation or scale has degree."""
    if trial.features != "constant" or trial.aggregation == "sum":
        return False
    # With a smaller eps than float32 resolves, the norm divides a scale before it out.
    divided_out = trial.slot == "before" and trial.eps <= 1e-8
    return trial.slot == "none" or trial.source == "constant" or divided_out


def plan(scale: str) -> Iterator[SelectionTrial]:
    """The whole map with ten seeds at ``full``; the headline cells and the falsifiers with five at ``laptop``.

    At ``full``, cells whose nodes all score equally are scored in float64. The others, whose order does not depend on
    rounding, keep the records in float32.
    """
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
                trial = SelectionTrial(task=task, seed=seed, **cell, **size)
                recorded = scale == "full" and not scores_are_equal(trial)
                yield replace(trial, scoring=FLOAT32 if recorded else FLOAT64)


def run(trial: SelectionTrial) -> Outcome:
    """Train a policy on small graphs, then rank the nodes of larger ones by its scores."""
    from normplace.lab.tasks.selection import ranking
    from normplace.lab.tasks.selection.rewards import REWARDS
    from normplace.lab.train.reinforce import train_policy

    with seeded(trial.seed):
        policy = Policy(convolution(trial.aggregation), 32, 3, features=trial.features, **stack_options(trial))
    if trial.extra_norm:
        # A placement rejects a final norm directly after a stream norm; here the scale is between the two.
        policy.stack.final_norm = LayerNorm(32, eps=trial.eps)
    generator = torch.Generator().manual_seed(trial.seed)
    graphs = training_graphs(trial.train_graphs, trial.seed)
    history = train_policy(policy, graphs, REWARDS[trial.task], steps=trial.steps, generator=generator)
    tested = test_graphs(trial.test_graphs, trial.seed)
    orders = [ranking(graph, scores(policy, graph, trial.seed, trial.scoring)) for graph in tested]
    tail = history[-max(1, len(history) // 10) :]
    return Outcome({"value": mean_score(trial.task, tested, orders), "train_reward": float(np.mean(tail))})


def in_demo(trial: SelectionTrial) -> bool:
    """Two seeds of the networks without a scale and with PostDeg before and after the norm."""
    plain = SelectionTrial(
        trial.task,
        trial.seed,
        steps=trial.steps,
        aggregation=trial.aggregation,
        features=trial.features,
        slot=trial.slot,
        scoring=trial.scoring,
    )
    return trial == plain and trial.aggregation == "softmax" and trial.seed < 2


PART = Part(
    name="selection",
    config=SelectionTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.task}, {trial.aggregation}, {trial.features} input, {trial.slot}, seed {trial.seed}",
    unavailable_reason=lambda trial: missing_package(trial.aggregation),
    in_demo=in_demo,
)
