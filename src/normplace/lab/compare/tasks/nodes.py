"""Node classification on one labelled graph."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.fields import check_range, check_types
from normplace.lab.compare.start_folder import from_start_folder
from normplace.lab.compare.task import SPLITS, Start, Task, task_reference
from normplace.lab.compare.tasks.graph_model import (
    GraphBatch,
    call_graph_model,
    check_output,
    importable_reference,
    model_factory,
)
from normplace.lab.tasks.graphs.grid_mines import NAME as GRID_MINES
from normplace.lab.tasks.graphs.grid_mines import grid_mines
from normplace.lab.tasks.graphs.labelled import LabelledGraph, load_labelled

LEARNING_RATE = 3e-3


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Node classification.

    Args:
        graph: ``grid-mines``, which is generated, a graph of :mod:`normplace.lab.tasks.graphs.labelled`, or an ``.npz``
            file with the same fields.
        model: ``file.py:make`` of a function from numbers of inputs and outputs to a PyG model; empty for a GAT.
        width: Width of the GAT.
        depth: Number of its layers.
        side: Cells per side of ``grid-mines``.

    Raises:
        UsageError: If a value has the wrong type or is out of range.
    """

    graph: str = GRID_MINES
    model: str = ""
    width: int = 32
    depth: int = 3
    side: int = 40

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "width", "depth", "side", least=1)


class NodeTask(Task):
    """Classify the nodes of one graph; seeds take the official splits in turn.

    Args:
        **settings: The fields of :class:`NodeConfig`.

    Raises:
        UsageError: If a setting is wrong, or the graph is not available.
    """

    better = "larger"
    learning_rate = LEARNING_RATE

    def __init__(self, **settings: Any) -> None:
        model = importable_reference(settings.get("model", ""))
        self.config = config = NodeConfig(**{**settings, "model": model})
        self.graph = _load(config)
        self.name = f"nodes of {Path(config.graph).stem}"
        self.reference = task_reference(NodeTask, dataclasses.asdict(config))
        self.code = (config.model,) if config.model else ()
        self.make_model = model_factory(config.model, config.width, config.depth)
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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.make_model(graph.x.shape[1], graph.num_classes)

        def loss(model: nn.Module, nodes: Tensor) -> Tensor:
            return F.cross_entropy(self._logits(model)[nodes], graph.y[nodes])

        return Start(
            model, [graph.train[split]], loss, lambda model, part: graph.score(self._logits(model), masks[part])
        )

    def describe(self) -> dict[str, Any]:
        """The graph and the settings."""
        return {**super().describe(), "measure": self.graph.metric, "settings": dataclasses.asdict(self.config)}

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
