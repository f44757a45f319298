"""Train on the nodes of one graph: all at once, in random clusters, or with sampled neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from normplace.lab.ogb.recipe import Recipe
from normplace.lab.ogb.training import fits, mean_loss, split_scores, step, task_loss
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask
from normplace.lab.tasks.graphs.ogb.node_graph import NodeGraph, undirected, with_self_loops
from normplace.lab.tasks.graphs.ogb.subgraphs import NeighbourSampler, Subgraph, clusters, random_parts


def prepare(graph: NodeGraph, recipe: Recipe) -> NodeGraph:
    """The graph with the edges that the recipe adds."""
    graph = undirected(graph) if recipe.undirected else graph
    return with_self_loops(graph) if recipe.self_loops else graph


class NodeTraining:
    """The epochs and evaluations of one seed on one graph.

    Args:
        task: The task.
        recipe: The settings.
        graph: The graph that :func:`prepare` returned.
        device: Where the network is trained.
        generator: Source of clusters and neighbours, on the CPU; the clusters of the evaluation are drawn first.
    """

    def __init__(
        self, task: OgbTask, recipe: Recipe, graph: NodeGraph, device: torch.device, generator: torch.Generator
    ) -> None:
        self.task, self.recipe, self.device, self.generator = task, recipe, device, generator
        # A full batch needs the graph on the device in any case.
        self.graph = graph.to(device) if recipe.batches == "full" or fits(graph.num_bytes, device) else graph
        self.sides = {side: getattr(graph, side).to(device) for side in ("train", "valid", "test")}
        self.labels = graph.y.to(device)
        self.trained = torch.zeros(graph.num_nodes, dtype=torch.bool, device=self.graph.y.device)
        self.trained[self.graph.train] = True
        self.evaluation_parts = random_parts(graph.num_nodes, recipe.evaluation_parts, generator)
        self.sampler = None
        if recipe.batches == "neighbours":
            self.sampler = NeighbourSampler(self.graph.edge_index, graph.num_nodes, recipe.fanouts)

    def epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """Train for one epoch, and return the mean loss of its steps."""
        model.train()
        losses = []
        if self.recipe.batches == "full":
            graph = self.graph
            logits = model(graph.x, graph.edge_index, graph.edge_attr)[graph.train]
            losses.append(step(optimizer, task_loss(self.task, logits, graph.y[graph.train])))
        else:
            for part, chosen in self._batches():
                logits = self._apply(model, part)[chosen]
                y = self.graph.y[part.nodes[chosen.to(part.nodes.device)]].to(self.device)
                losses.append(step(optimizer, task_loss(self.task, logits, y)))
        return mean_loss(losses)

    def _batches(self) -> Iterator[tuple[Subgraph, Tensor]]:
        """Subgraphs, and the positions of the nodes to learn from, on the device of the network."""
        if self.sampler is not None:
            shuffled = torch.randperm(len(self.graph.train), generator=self.generator)
            for chosen in shuffled.split(self.recipe.batch_size):
                seeds = self.graph.train[chosen.to(self.graph.train.device)]
                yield self.sampler.sample(seeds, self.generator), torch.arange(len(seeds), device=self.device)
            return
        part = random_parts(self.graph.num_nodes, self.recipe.parts, self.generator)
        # The clusters are drawn anew in every epoch, so their order is random already.
        for cluster in clusters(self.graph.edge_index, part, self.recipe.parts):
            positions = self.trained[cluster.nodes].nonzero()[:, 0].to(self.device)
            if len(positions):
                yield cluster, positions

    def _apply(self, model: nn.Module, part: Subgraph) -> Tensor:
        """The logits of the nodes of a subgraph."""
        graph = self.graph
        x = graph.x[part.nodes].to(self.device)
        attr = None if graph.edge_attr is None else graph.edge_attr[part.edges].to(self.device)
        return model(x, part.edge_index.to(self.device), attr)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The scores in evaluation mode, by the side of the split; none if an output is not finite."""
        model.eval()
        graph, parts = self.graph, self.recipe.evaluation_parts
        if parts == 1:
            # A graph that does not fit on the device is evaluated on the CPU, as the authors do on ogbn-products.
            model.to(graph.x.device)
            outputs = model(graph.x, graph.edge_index, graph.edge_attr).to(self.device)
            model.to(self.device)
        else:
            outputs = torch.zeros(graph.num_nodes, self.task.outputs, device=self.device)
            for cluster in clusters(graph.edge_index, self.evaluation_parts, parts):
                if len(cluster.nodes):
                    outputs[cluster.nodes.to(self.device)] = self._apply(model, cluster)
        labels = {side: self.labels[nodes] for side, nodes in self.sides.items()}
        return split_scores(self.task, {side: outputs[nodes] for side, nodes in self.sides.items()}, labels)
