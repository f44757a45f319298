"""Graph classification: which random model generated a graph?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.lab.compare.task import SPLITS, Start
from normplace.lab.compare.tasks.graph_model import GraphBatch, call_graph_model, check_output, join_graphs
from normplace.lab.compare.tasks.graph_task import GraphTask, RandomGraphsConfig
from normplace.lab.tasks.graphs.labelled import accuracy
from normplace.lab.tasks.selection import Graph, mixed_graphs
from normplace.models.policy import FEATURES

KINDS = ("scale-free", "uniform", "scale-free with triangles", "three groups")
"""The kinds of random graphs, which :func:`normplace.lab.tasks.selection.mixed_graphs` draws in this order."""
NODES = (30, 80)
EPOCH = 1_000_003
"""Distance between the seeds of two epochs."""


@dataclass(frozen=True, kw_only=True)
class KindsConfig(RandomGraphsConfig):
    """Settings of the classification of random graphs; see :class:`RandomGraphsConfig`.

    The model returns one row per graph. All graphs have 30 to 80 nodes.
    """

    train_graphs: int = 512
    held_out: int = 256
    batch: int = 16


class KindsTask(GraphTask):
    """Classify random graphs of four kinds: scale-free, uniform, scale-free with triangles, three groups.

    Args:
        **settings: The fields of :class:`KindsConfig`.

    Raises:
        UsageError: If a setting is wrong, or a package is missing.
    """

    config_class = KindsConfig
    config: KindsConfig
    measure_name = "accuracy"
    pools = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        config = self.config
        self.name = f"graph kinds, {config.features} input"
        self.notes = (
            f"Each seed trains on {config.train_graphs} random graphs of {NODES[0]} to {NODES[1]} nodes; "
            f"{config.held_out} others choose the learning rate, and {config.held_out} more are reported.",
        )

    def start(self, seed: int) -> Start:
        """Draw the graphs of a seed and build the network."""
        config = self.config
        train, *others = (
            mixed_graphs(count, *NODES, np.random.default_rng([seed, number]))
            for number, count in enumerate((config.train_graphs, config.held_out, config.held_out))
        )
        held_out = {
            split: self._joined(graphs, range(len(graphs)), torch.Generator().manual_seed(seed))
            for split, graphs in zip(SPLITS, others, strict=True)
        }
        model = self.new_model(seed, FEATURES[config.features][0], len(KINDS))

        def validate(model: nn.Module, split: str) -> float:
            labels = held_out[split].y
            assert labels is not None
            return accuracy(self._logits(model, held_out[split]), labels)

        return Start(model, lambda epoch: self._batches(train, seed, epoch), self.loss, validate)

    def loss(self, model: nn.Module, batch: GraphBatch) -> Tensor:
        """Mean cross-entropy of the kind."""
        assert batch.y is not None
        return F.cross_entropy(self._logits(model, batch), batch.y)

    def _logits(self, model: nn.Module, batch: GraphBatch) -> Tensor:
        logits = call_graph_model(model, batch)
        check_output(logits, (len(batch.sizes), len(KINDS)), "graph")
        return logits

    def _batches(self, graphs: list[Graph], seed: int, epoch: int) -> Iterator[GraphBatch]:
        """Every training graph once, in the order of an epoch; a last batch that is not full is left out."""
        generator = torch.Generator().manual_seed(seed + EPOCH * epoch)
        order = torch.randperm(len(graphs), generator=generator)
        size = min(self.config.batch, len(graphs))
        for part in order[: len(order) // size * size].split(size):
            yield self._joined(graphs, part.tolist(), generator)

    def _joined(self, graphs: list[Graph], indices: Sequence[int], generator: torch.Generator) -> GraphBatch:
        joined = join_graphs([graphs[index] for index in indices], self.config.features, generator)
        return dataclasses.replace(joined, y=torch.tensor([index % len(KINDS) for index in indices]))
