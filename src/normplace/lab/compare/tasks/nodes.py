"""Node classification on one labelled graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import expect_ranges
from normplace.lab.compare.start_folder import from_start_folder
from normplace.lab.compare.task import SPLITS, Start
from normplace.lab.compare.tasks.graph_model import GraphBatch, call_graph_model, check_output
from normplace.lab.compare.tasks.graph_task import GraphTask, GraphTaskConfig
from normplace.lab.tasks.graphs.grid_mines import NAME as GRID_MINES
from normplace.lab.tasks.graphs.grid_mines import grid_mines
from normplace.lab.tasks.graphs.labelled import LabelledGraph, load_labelled


@dataclass(frozen=True, kw_only=True)
class NodeConfig(GraphTaskConfig):
    """Settings of node classification, in addition to those of :class:`GraphTaskConfig`.

    Args:
        graph: ``grid-mines``, which is generated, a graph of :mod:`normplace.lab.tasks.graphs.labelled`, or an ``.npz``
            file with the same fields.
        side: Cells per side of ``grid-mines``.
    """

    graph: str = GRID_MINES
    side: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "side", least=1)


class NodeTask(GraphTask):
    """Classify the nodes of one graph; seeds take the official splits in turn.

    Args:
        **settings: The fields of :class:`NodeConfig`.

    Raises:
        UsageError: If a setting is wrong, or the graph is not available.
    """

    config_class = NodeConfig
    config: NodeConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        config = self.config
        self.graph = _load(config)
        self.measure_name = self.graph.metric
        self.name = f"nodes of {Path(config.graph).stem}"
        self.batch = GraphBatch(
            self.graph.x,
            self.graph.edge_index,
            torch.zeros(self.graph.num_nodes, dtype=torch.long),
            (len(self.graph.y),),
        )
        self.notes = (
            f"The validation nodes of {Path(config.graph).stem} choose the learning rate, and its test nodes are "
            "reported.",
        )

    def start(self, seed: int) -> Start:
        """Build the network of a seed, and take its split."""
        graph, split = self.graph, seed % self.graph.num_splits
        masks: dict[str, Tensor] = dict(zip(SPLITS, (graph.val[split], graph.test[split]), strict=True))
        model = self.new_model(seed, graph.x.shape[1], graph.num_classes)

        def loss(model: nn.Module, nodes: Tensor) -> Tensor:
            return F.cross_entropy(self._logits(model)[nodes], graph.y[nodes])

        return Start(
            model, [graph.train[split]], loss, lambda model, part: graph.score(self._logits(model), masks[part])
        )

    def _logits(self, model: nn.Module) -> Tensor:
        logits = call_graph_model(model, self.batch)
        check_output(logits, (self.graph.num_nodes, self.graph.num_classes), "node")
        return logits


def _load(config: NodeConfig) -> LabelledGraph:
    if config.graph == GRID_MINES:
        return grid_mines(torch.Generator().manual_seed(0), side=config.side, splits=10)
    if config.graph.endswith(".npz"):
        return load_labelled(Path(config.graph).stem, str(from_start_folder(config.graph)))
    return load_labelled(config.graph)
