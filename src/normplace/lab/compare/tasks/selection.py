"""Node-selection tasks: a graph network scores nodes, and the reward of the resulting order is learned by REINFORCE.

Small random graphs train; larger ones are held out, in two sets. The measure is the reward of the nodes ordered by
score: the share of nodes that are activated (influence), 1 - R (dismantling) or in the independent set.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normplace.errors import expect_choice, expect_ranges
from normplace.lab.compare.task import SPLITS, Start
from normplace.lab.compare.tasks.graph_model import GraphBatch, call_graph_model, check_output, join_graphs
from normplace.lab.compare.tasks.graph_task import GraphTask, RandomGraphsConfig
from normplace.lab.tasks.selection import Graph, mixed_graphs, ranking
from normplace.lab.tasks.selection.rewards import REWARDS, InfluenceReward
from normplace.lab.train.reinforce import policy_loss
from normplace.models.policy import FEATURES, break_ties

TRAIN_NODES, HELD_OUT_NODES = (30, 80), (100, 200)
SIMULATIONS = 400
"""Simulations of each cascade in the measure; training uses fewer."""


@dataclass(frozen=True, kw_only=True)
class SelectionConfig(RandomGraphsConfig):
    """Settings of a node-selection task, in addition to those of :class:`RandomGraphsConfig`.

    Training graphs have 30 to 80 nodes, held-out graphs 100 to 200.

    Args:
        task: ``influence``, ``dismantling`` or ``independent-set``.
        samples: Orders sampled per graph.
    """

    task: str = "influence"
    train_graphs: int = 64
    held_out: int = 16
    batch: int = 8
    samples: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "samples", least=2)
        expect_choice("task", self.task, REWARDS)


@dataclass(frozen=True, eq=False)
class SelectionBatch:
    """A batch of training graphs, and the randomness of the orders that are sampled on it.

    Args:
        joined: The graphs as one union.
        graphs: The graphs.
        seed: Random seed of the orders and rewards.
    """

    joined: GraphBatch
    graphs: tuple[Graph, ...]
    seed: int

    def to(self, device: torch.device | str) -> SelectionBatch:
        """The same batch on another device."""
        return dataclasses.replace(self, joined=self.joined.to(device))


class SelectionTask(GraphTask):
    """Score the nodes of a graph for influence, dismantling or an independent set.

    Args:
        **settings: The fields of :class:`SelectionConfig`.

    Raises:
        UsageError: If a setting is wrong, or a package is missing.
    """

    config_class = SelectionConfig
    config: SelectionConfig
    measure_name = "reward"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        config = self.config
        self.name = f"{config.task}, {config.features} input"
        self.reward = REWARDS[config.task]
        self.measure = InfluenceReward(simulations=SIMULATIONS) if config.task == "influence" else self.reward
        low, high = HELD_OUT_NODES
        self.notes = (
            f"Each seed trains on {config.train_graphs} random graphs of {TRAIN_NODES[0]} to {TRAIN_NODES[1]} nodes; "
            f"{config.held_out} graphs of {low} to {high} nodes choose the learning rate, and {config.held_out} others "
            "are reported.",
        )

    def start(self, seed: int) -> Start:
        """Draw the graphs of a seed and build the network."""
        config = self.config
        train = mixed_graphs(config.train_graphs, *TRAIN_NODES, np.random.default_rng([seed, 0]))
        held_out = {
            split: mixed_graphs(config.held_out, *HELD_OUT_NODES, np.random.default_rng([seed, number]))
            for number, split in enumerate(SPLITS, start=1)
        }
        return Start(
            self.new_model(seed, FEATURES[config.features][0], 1),
            lambda epoch: self._batches(train, seed),
            self.loss,
            lambda trained, split: self.mean_reward(trained, held_out[split], seed),
            can_rise=True,
        )

    def loss(self, model: nn.Module, batch: SelectionBatch) -> Tensor:
        """The negative mean reward of sampled orders, with the gradient of REINFORCE."""
        scores = self._scores(model, batch.joined)
        generator = torch.Generator(scores.device).manual_seed(batch.seed)
        sampled = policy_loss(
            scores, batch.graphs, self.reward, self.config.samples, generator=generator, seed=batch.seed % 2**31
        )
        return sampled.loss - sampled.loss.detach() - sampled.mean_reward

    def mean_reward(self, model: nn.Module, graphs: list[Graph], seed: int) -> float:
        """The mean reward of the orders by score; equal scores are in random order.

        Scores are computed in float64, so that rounding does not order equal nodes.
        """
        wide = copy.deepcopy(model).double()
        device = next(wide.parameters()).device
        joined = join_graphs(graphs, self.config.features, torch.Generator().manual_seed(seed))
        joined = dataclasses.replace(joined, x=joined.x.double()).to(device)
        parts = self._scores(wide, joined).detach().cpu().split(list(joined.sizes))
        rewards = []
        for number, (graph, scores) in enumerate(zip(graphs, parts, strict=True)):
            broken = break_ties(scores.numpy(), np.random.default_rng([seed, number]))
            rewards.append(float(self.measure.rewards(graph, ranking(graph, broken)[None], seed=number)[0]))
        return float(np.mean(rewards))

    def _scores(self, model: nn.Module, joined: GraphBatch) -> Tensor:
        output = call_graph_model(model, joined)
        check_output(output, (sum(joined.sizes), 1), "node")
        return output.squeeze(1)

    def _batches(self, graphs: list[Graph], seed: int) -> Iterator[SelectionBatch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            drawn = torch.randint(len(graphs), (self.config.batch,), generator=generator).tolist()
            chosen = tuple(graphs[index] for index in drawn)
            order_seed = int(torch.randint(2**62, (), generator=generator))
            yield SelectionBatch(join_graphs(chosen, self.config.features, generator), chosen, order_seed)
