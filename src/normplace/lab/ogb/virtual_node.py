"""The virtual node of DeeperGCN on ogbg-molpcba.

Its state is added to the input of every convolution, not to the stream. In each layer after the first, the sum of the
convolution's inputs over a graph's nodes, plus the state, goes through an MLP and becomes the new state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from normplace.models.graph_parts import pool


@dataclass(eq=False)
class GraphState:
    """Edges and virtual nodes of one forward pass, which every convolution reads and updates.

    Args:
        edge_attr: Features or types of the edges.
        value: State of the virtual node of each graph, graphs × width.
        graph: Index of the graph of each node.
    """

    edge_attr: Tensor
    value: Tensor
    graph: Tensor


class VirtualNodeConv(nn.Module):
    """A convolution whose input has the state of the virtual node added.

    Args:
        conv: A convolution with edge features.
        dim: Width of its input.
        norm: Builds a norm of a given width.
        dropout: Dropout probability of the new state.
        update: Whether the state is updated first; the first convolution reads the initial state.
    """

    def __init__(
        self, conv: nn.Module, dim: int, norm: Callable[[int], nn.Module], dropout: float, update: bool
    ) -> None:
        super().__init__()
        self.conv = conv
        layers = [nn.Linear(dim, dim), norm(dim), nn.ReLU(), nn.Linear(dim, dim), norm(dim), nn.ReLU()]
        self.update = nn.Sequential(*layers, nn.Dropout(dropout)) if update else None

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: GraphState) -> Tensor:
        """Update the state, add it to each node of its graph, and apply the convolution."""
        state = edge_attr
        if self.update is not None:
            state.value = self.update(pool(x, state.graph, "sum", len(state.value)) + state.value)
        return self.conv(x + state.value[state.graph], edge_index, edge_attr=state.edge_attr)
