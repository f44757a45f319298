"""Batches of graphs, and the graph network that the built-in graph tasks train: a GAT of PyG, or the user's model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from normplace._shared.references import load_reference
from normplace.errors import UsageError, first_line
from normplace.models.policy import FEATURES, NeighborLists

HEADS = 4


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Graphs as one disjoint union.

    Args:
        x: Features of the nodes.
        edge_index: Source and target of each edge, 2 × E.
        batch: Index of the graph of each node.
        sizes: Number of nodes of each graph.
        y: Label of each graph or node; None for tasks without labels.
    """

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    sizes: tuple[int, ...]
    y: Tensor | None = None

    def to(self, device: torch.device | str) -> GraphBatch:
        """The same batch on another device."""
        y = None if self.y is None else self.y.to(device)
        return replace(
            self, x=self.x.to(device), edge_index=self.edge_index.to(device), batch=self.batch.to(device), y=y
        )


def join_graphs(graphs: Sequence[NeighborLists], features: str, generator: torch.Generator) -> GraphBatch:
    """Join graphs into a batch, with node features.

    Args:
        graphs: The graphs.
        features: ``constant``, ``degree`` or ``random``; see :data:`normplace.models.policy.FEATURES`.
        generator: Draws random features.
    """
    sizes = [graph.num_nodes for graph in graphs]
    edges = []
    for graph, first in zip(graphs, np.cumsum([0, *sizes[:-1]]), strict=True):
        source = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        edges.append(np.stack([source, graph.indices.astype(np.int64)]) + first)
    make_features = FEATURES[features][1]
    return GraphBatch(
        x=torch.cat([make_features(graph, generator) for graph in graphs]),
        edge_index=torch.from_numpy(np.concatenate(edges, axis=1)),
        batch=torch.repeat_interleave(torch.tensor(sizes)),
        sizes=tuple(sizes),
    )


class GATNet(nn.Module):
    """A stack of PyG's GATConv with PostDeg's block: ``x = norm(x + relu(conv(x)))``.

    Args:
        in_channels: Number of input features.
        out_channels: Number of outputs per node, or per graph.
        width: Width of the hidden layers.
        depth: Number of layers.
        pools: Whether to average over the nodes of each graph before the head.
    """

    def __init__(
        self, in_channels: int, out_channels: int, width: int = 32, depth: int = 3, pools: bool = False
    ) -> None:
        super().__init__()
        from torch_geometric.nn import GATConv

        self.embed, self.head = nn.Linear(in_channels, width), nn.Linear(width, out_channels)
        self.convs = nn.ModuleList(GATConv(width, width // HEADS, heads=HEADS) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.pools = pools

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """One row of outputs per node, or per graph."""
        x = self.embed(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(x + conv(x, edge_index).relu())
        if self.pools and batch is not None:
            from torch_geometric.nn import global_mean_pool

            x = global_mean_pool(x, batch)
        return self.head(x)


def model_factory(reference: str, width: int, depth: int, pools: bool = False) -> Callable[[int, int], nn.Module]:
    """The function from numbers of inputs and outputs to a network.

    Args:
        reference: ``file.py:make`` or ``package.module:make`` of the user's function; empty for :class:`GATNet`.
        width: Width of a :class:`GATNet`.
        depth: Its number of layers.
        pools: Whether it returns one row per graph.

    Raises:
        UsageError: If PyG is missing, or there is no such function.
    """
    if reference:
        factory = load_reference(reference)
        if not callable(factory):
            raise UsageError(f"{reference} is not a function: write one from two widths to a network.")
        return lambda inputs, outputs: _build_own(factory, reference, inputs, outputs)
    try:
        import torch_geometric  # noqa: F401
    except ImportError as error:
        raise UsageError("the built-in graph network is a GAT of PyG: pip install 'normplace[graphs]'.") from error
    if width % HEADS:
        raise UsageError(f"width must be a multiple of {HEADS}, the number of attention heads, got {width}.")
    return lambda inputs, outputs: GATNet(inputs, outputs, width, depth, pools)


def _build_own(factory: Callable[..., object], reference: str, inputs: int, outputs: int) -> nn.Module:
    try:
        model = factory(inputs, outputs)
    except Exception as error:  # the user's code
        raise UsageError(
            f"{reference}({inputs}, {outputs}) failed ({first_line(error)}): it is called with the numbers of inputs "
            "and outputs of a node."
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"{reference} returned {type(model).__name__} instead of a model: return the network.")
    return model


def call_graph_model(model: nn.Module, graph: GraphBatch) -> Tensor:
    """Call a network with the features, the edges and, if it takes one, the batch."""
    parameters = list(inspect.signature(model.forward).parameters)
    if parameters[2:3] == ["batch"]:
        return model(graph.x, graph.edge_index, graph.batch)
    if "batch" in parameters:
        return model(graph.x, graph.edge_index, batch=graph.batch)
    return model(graph.x, graph.edge_index)


def check_output(output: Tensor, shape: tuple[int, int], owner: str) -> None:
    """Check the output of a network.

    Args:
        output: The output.
        shape: The shape it must have.
        owner: What has the rows: ``node`` or ``graph``.

    Raises:
        UsageError: If it has another shape.
    """
    if not isinstance(output, Tensor) or output.shape != shape:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UsageError(
            f"the network must return {shape[1]} number{'s' if shape[1] > 1 else ''} for each {owner}, shape {shape}, "
            f"got {got}."
        )
