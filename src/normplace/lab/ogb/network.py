"""The published networks: encoders of nodes and edges around a stack of generalized convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normplace.lab.ogb.edge_encoders import CategoryTable, CombineCategories, LinearInSequence
from normplace.lab.ogb.recipe import Recipe
from normplace.lab.ogb.virtual_node import GraphState, VirtualNodeConv
from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask
from normplace.models import Dropout, GENConv, GraphStack
from normplace.models.graph import NAMED
from normplace.models.graph_parts import SumOfEmbeddings
from normplace.norms import BatchNorm, LayerNorm

NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm, "layer": LayerNorm}
SLOTS = ("embedding", "input", "inner", "output", "stream")


class SpeciesEncoder(nn.Module):
    """A linear map of features, some of which go through another linear map first.

    Args:
        known: Number of features that go through one map.
        codes: Number of features that go through both.
        dim: Width of the stream.
    """

    def __init__(self, known: int, codes: int, dim: int) -> None:
        super().__init__()
        self.known = known
        self.codes, self.features = nn.Linear(codes, codes), nn.Linear(known + codes, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Encode each node."""
        return self.features(torch.cat([x[:, : self.known], self.codes(x[:, self.known :])], 1))


class OgbNetwork(nn.Module):
    """DeeperGCN for a task: a graph stack with the published encoders of nodes and edges.

    With the order ``res+`` it computes what the authors' code does. ``res`` and ``plain`` differ from it in the first
    layer, which here is a block like the others.

    Args:
        task: The task.
        recipe: The settings.
        node_dim: Width of the node features; not needed for atoms.
        edge_dim: Width of the edge features; None without.

    Raises:
        UsageError: If settings contradict each other.
    """

    def __init__(self, task: OgbTask, recipe: Recipe, node_dim: int, edge_dim: int | None) -> None:
        super().__init__()
        dim = recipe.dim
        self.types = CombineCategories(BOND_SIZES) if task.categorical else None
        # The edge encoder of every layer has it as a submodule; its parameters count once.
        shared = nn.Linear(edge_dim, dim) if edge_dim is not None and not task.categorical else None
        self.virtual = nn.Parameter(torch.zeros(dim)) if recipe.virtual_node else None
        norm = NORMS[recipe.norm]
        number = itertools.count()

        def conv(in_dim: int, out_dim: int) -> nn.Module:
            built = _convolution(recipe, in_dim, out_dim)
            if task.categorical:
                built.edge_table = CategoryTable(BOND_SIZES, out_dim)  # pyright: ignore[reportAttributeAccessIssue]
            elif shared is not None:
                built.lin_edge = LinearInSequence(shared, out_dim)  # pyright: ignore[reportAttributeAccessIssue]
            if not recipe.virtual_node:
                return built
            return VirtualNodeConv(built, in_dim, norm, recipe.dropout, update=next(number) > 0)

        # Networks for nodes have a ReLU after the final norm, networks for graphs do not.
        final = norm if task.level == "graph" else lambda width: nn.Sequential(norm(width), nn.ReLU())
        self.stack = GraphStack(
            conv,
            max(1, node_dim),
            dim,
            task.outputs,
            recipe.depth,
            norm={**dict.fromkeys(SLOTS, norm), "final": final},
            embedding=_embedding(task, node_dim, edge_dim, dim),
            readout="mean" if task.level == "graph" else None,
            memory=recipe.memory,
            **_order(recipe),
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Tensor:
        """The logits of each node, or of each graph."""
        edges: Any = edge_attr if self.types is None or edge_attr is None else self.types(edge_attr)
        if self.virtual is not None:
            assert batch is not None and num_graphs is not None
            edges = GraphState(edges, self.virtual.expand(num_graphs, -1), batch)
        return self.stack(x, edge_index, edges, batch, num_graphs=num_graphs)


def _convolution(recipe: Recipe, in_dim: int, out_dim: int) -> GENConv:
    return GENConv(
        in_dim,
        out_dim,
        aggr=recipe.aggregation,
        t=recipe.t,
        learn_t=recipe.learn_t,
        norm=recipe.norm,
        num_layers=recipe.mlp_layers,
        bias=True,
    )


def _embedding(task: OgbTask, node_dim: int, edge_dim: int | None, dim: int) -> nn.Module | None:
    """The encoder of nodes; None for a linear map."""
    if task.categorical:
        return SumOfEmbeddings(ATOM_SIZES, dim)
    if task.level == "node" and edge_dim is not None and node_dim > edge_dim:
        return SpeciesEncoder(edge_dim, node_dim - edge_dim, dim)
    return None


def _order(recipe: Recipe) -> dict[str, Any]:
    """Arguments of the stack for the order of norm, activation, convolution and dropout."""
    if recipe.order == "res+":
        named = NAMED["res+"] | ({"placement": recipe.placement} if recipe.placement else {})
        return {**named, "stem": True, "dropout": Dropout(branch=recipe.dropout, head=recipe.dropout)}
    return {**NAMED[recipe.order], "dropout": Dropout(stream=recipe.dropout)}
