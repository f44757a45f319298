"""Train on batches of graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normplace.lab.ogb.recipe import Recipe
from normplace.lab.ogb.training import fits, mean_loss, split_scores, step, task_loss
from normplace.lab.tasks.graphs.graph_batches import GraphSet
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask

EVALUATED = 8
"""How many times more graphs a batch has in evaluation, where no activations are kept."""


class GraphTraining:
    """The epochs and evaluations of one seed on a set of graphs."""

    def __init__(
        self, task: OgbTask, recipe: Recipe, graphs: GraphSet, device: torch.device, generator: torch.Generator
    ) -> None:
        self.task, self.recipe, self.device, self.generator = task, recipe, device, generator
        self.graphs = graphs.to(device) if fits(graphs.num_bytes, device) else graphs
        self.labels = graphs.y.to(device)

    def epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """Train for one epoch, and return the mean loss of its steps."""
        model.train()
        losses = []
        order = self.graphs.train[torch.randperm(len(self.graphs.train), generator=self.generator)]
        for indices in order.split(self.recipe.batch_size):
            if len(indices) == 1:
                continue  # BatchNorm cannot normalize a graph that may be a single node
            logits, y = self._apply(model, indices)
            losses.append(step(optimizer, task_loss(self.task, logits, y)))
        return mean_loss(losses)

    def _apply(self, model: nn.Module, indices: Tensor) -> tuple[Tensor, Tensor]:
        batch = self.graphs.batch(indices, self.device)
        return model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.num_graphs), batch.y

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The validation and test scores, none if an output is not finite.

        The score of the training graphs would take as long as an epoch.
        """
        model.eval()
        outputs, labels = {}, {}
        for side in ("valid", "test"):
            indices = getattr(self.graphs, side)
            batches = indices.split(EVALUATED * self.recipe.batch_size)
            outputs[side] = torch.cat([self._apply(model, batch)[0] for batch in batches])
            labels[side] = self.labels[indices.to(self.device)]
        return split_scores(self.task, outputs, labels)
