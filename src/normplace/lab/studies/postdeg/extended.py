"""The extended map: where a topology scale after the norm helps, against the degree that already reaches the head.

Cells differ from PostDeg's in one of placement, convolution, input, scalar and power. Every cell has a baseline, the
same network without a scale, whose head input is probed: squared rank correlation of a linear map with the degree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.postdeg.networks import mean_score, missing_package, test_graphs, training_graphs
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.trials.study import Outcome, Part
from normplace.models.convolutions import CONVOLUTIONS, convolution
from normplace.models.policy import FEATURES, Policy
from normplace.models.topology import TOPOLOGIES
from normplace.norms import LayerNorm
from normplace.placement.scale import Scale

if TYPE_CHECKING:
    from normplace.lab.tasks.selection import Graph
    from normplace.lab.tasks.selection.rewards import Selection

SLOT = {"post": "stream", "pre": "input", "peri": "output"}
"""Slot of the norm that the scale follows, by placement."""
SOURCES = ("degree", "k-core", "pagerank", "eigenvector", "betweenness", "clustering")
POWERS = (-1.0, -0.5, 0.5, 1.0)
RIDGE = 1e-3
"""Penalty of the probe's weights, relative to the mean variance of the features."""


@dataclass(frozen=True)
class ExtendedTrial:
    """One policy, trained, tested and probed.

    Args:
        task: The task whose score rewards an order of nodes.
        seed: Random seed of the graphs, the initial weights and the training.
        placement: ``post``, ``pre`` or ``peri``.
        convolution: Name of the convolution.
        features: Input features of the nodes.
        source: Scalar of the scale after the norm; empty for the baseline.
        power: Exponent of the scale.
        extra_norm: Whether another LayerNorm is placed before the head.
        steps: Number of training steps.
        train_graphs: Number of training graphs, of 30 to 80 nodes.
        test_graphs: Number of test graphs, of 100 to 200 nodes.
    """

    task: str
    seed: int
    placement: str = "post"
    convolution: str = "softmax"
    features: str = "constant"
    source: str = "degree"
    power: float = -1.0
    extra_norm: bool = False
    steps: int = 250
    train_graphs: int = 64
    test_graphs: int = 32

    def __post_init__(self) -> None:
        expect_choice("task", self.task, TASKS)
        expect_choice("placement", self.placement, SLOT)
        expect_choice("convolution", self.convolution, CONVOLUTIONS)
        expect_choice("input", self.features, FEATURES)
        expect_choice("scalar", self.source or "degree", TOPOLOGIES)
        expect_ranges(self, "steps", "train_graphs", least=1)
        expect_ranges(self, "test_graphs", least=2)


def baseline(cell: dict[str, Any]) -> dict[str, Any]:
    """The cell without a scale."""
    return {**{key: value for key, value in cell.items() if key != "power"}, "source": ""}


def scaled_cells() -> Iterator[dict[str, Any]]:
    """The cells with a scale: every convolution with every input, every placement, scalars, powers, an extra norm."""
    for name in CONVOLUTIONS:
        for features in FEATURES:
            yield {"convolution": name, "features": features}
    for placement in ("pre", "peri"):
        for name in CONVOLUTIONS:
            for features in ("constant", "noisy-degree", "degree"):
                yield {"placement": placement, "convolution": name, "features": features}
    for features in ("random", "noisy-degree"):
        for source in SOURCES[1:]:
            yield {"features": features, "source": source}
        for source in SOURCES[:3]:
            for power in POWERS[1:]:
                yield {"features": features, "source": source, "power": power}
        yield {"features": features, "extra_norm": True}


def with_baselines(scaled: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every cell after its baseline, once; cells that differ in values that are defaults are the same."""
    found = {ExtendedTrial(next(iter(TASKS)), 0, **cell): cell for one in scaled for cell in (baseline(one), one)}
    return list(found.values())


def plan(scale: str) -> Iterator[ExtendedTrial]:
    """All cells with five seeds at ``full``; the inputs of two convolutions with five seeds at ``laptop``.

    Seeds are the outer loop: an interrupted run has the same seeds of all cells.
    """
    size: dict[str, Any] = {}
    chosen, seeds = with_baselines(scaled_cells()), 5
    if scale == "laptop":
        few = [{"convolution": name, "features": features} for name in ("softmax", "gin") for features in FEATURES]
        chosen, size = with_baselines(few), {"steps": 150}
    elif scale == "smoke":
        chosen, seeds = [{"features": "noisy-degree", "source": ""}, {"features": "noisy-degree"}], 2
        size = {"steps": 2, "train_graphs": 4, "test_graphs": 4}
    for seed in range(seeds):
        for task in TASKS:
            for cell in chosen:
                yield ExtendedTrial(task=task, seed=seed, **cell, **size)


def build(trial: ExtendedTrial) -> Policy:
    """The untrained policy of a trial: three blocks of width 32."""
    scale = Scale(trial.source, trial.power, "after", SLOT[trial.placement]) if trial.source else None
    with seeded(trial.seed):
        policy = Policy(
            convolution(trial.convolution), 32, 3, features=trial.features, placement=trial.placement, scale=scale
        )
    if trial.extra_norm:
        # A placement rejects a final norm directly after a stream norm; here the scale is between the two.
        policy.stack.final_norm = LayerNorm(32)
    return policy


def trained(trial: ExtendedTrial, graphs: list[Graph], reward: Selection, steps: int) -> Policy:
    """The policy of a trial after its training, in float64."""
    from normplace.lab.train.reinforce import train_policy

    policy = build(trial)
    train_policy(policy, graphs, reward, steps=steps, generator=torch.Generator().manual_seed(trial.seed))
    return policy.double()


def run(trial: ExtendedTrial) -> Outcome:
    """Train on small graphs, rank the nodes of larger ones, and probe the input of the head for the degree."""
    from normplace.lab.tasks.selection import ranking
    from normplace.lab.tasks.selection.rewards import REWARDS

    graphs, tested = training_graphs(trial.train_graphs, trial.seed), test_graphs(trial.test_graphs, trial.seed)
    policy = trained(trial, graphs, REWARDS[trial.task], trial.steps)
    value = mean_score(trial.task, tested, [ranking(graph, policy.score(graph, trial.seed)) for graph in tested])
    return Outcome({"value": value, "degree_r2": degree_at_head(policy, tested, trial.seed)})


def degree_at_head(policy: Policy, graphs: list[Graph], seed: int) -> float:
    """Squared rank correlation of the degree with a linear map of the head's input, on graphs it was not fitted on.

    The map is fitted to ranks on every second graph, so that a few hubs do not decide. It is 0 if the head's input is
    the same for all nodes.
    """
    inputs: list[torch.Tensor] = []
    handle = policy.stack.head.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    with torch.no_grad():
        for number, graph in enumerate(graphs):
            policy([policy.prepare(graph)], torch.Generator().manual_seed(seed + number))
    handle.remove()
    x = np.concatenate([one.numpy() for one in inputs[::2]])
    center = x.mean(axis=0)
    covariance = (x - center).T @ (x - center) / len(x)
    penalty = RIDGE * np.trace(covariance) / len(covariance)
    if penalty < 1e-12:
        return 0.0
    ranked = ranks(np.concatenate([graph.degrees for graph in graphs[::2]]))
    slope = (x - center).T @ (ranked - ranked.mean()) / len(x)
    weights = np.linalg.solve(covariance + penalty * np.eye(len(covariance)), slope)
    predicted = np.concatenate([one.numpy() for one in inputs[1::2]]) @ weights
    degrees = np.concatenate([graph.degrees for graph in graphs[1::2]])
    return float(np.corrcoef(ranks(predicted), ranks(degrees))[0, 1] ** 2)


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Ranks from 0 to 1; ties have their mean rank."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right")) / (2 * len(values))


def label(trial: ExtendedTrial) -> str:
    """Short description for progress output."""
    scale = f"{trial.source}^{trial.power:g}" if trial.source else "no scale"
    return f"{trial.task}, {trial.placement}, {trial.convolution}, {trial.features}, {scale}, seed {trial.seed}"


PART = Part(
    name="extended",
    config=ExtendedTrial,
    plan=plan,
    run=run,
    label=label,
    unavailable_reason=lambda trial: missing_package(trial.convolution),
)
