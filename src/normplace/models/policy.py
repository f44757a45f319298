"""A node-selection policy: a graph network that scores every node of a graph."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normplace.errors import expect_choice
from normplace.models.graph import GraphStack
from normplace.models.topology import topology

RANDOM_WIDTH = 8
CLIP, QUANTILES = 3, 4
# Scores closer than this, relative to the largest, differ by rounding: float64 through a few dozen layers keeps more.
TIE = 1e-10


class NeighborLists(Protocol):
    """An undirected graph in CSR form, such as :class:`normplace.lab.tasks.selection.Graph`."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        ...

    @property
    def num_edges(self) -> int:
        """Number of undirected edges."""
        ...

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Start of each node's neighbors in ``indices``, and the length of ``indices``."""
        ...

    @property
    def indices(self) -> NDArray[np.int32]:
        """Neighbors of node 0, then of node 1, and so on."""
        ...


def _constant(graph: NeighborLists, generator: torch.Generator) -> Tensor:
    return torch.ones(graph.num_nodes, 1)


def _degree(graph: NeighborLists, generator: torch.Generator) -> Tensor:
    return torch.from_numpy(np.log1p(np.diff(graph.indptr))).float().unsqueeze(1)


def _random(graph: NeighborLists, generator: torch.Generator) -> Tensor:
    return torch.randn(graph.num_nodes, RANDOM_WIDTH, generator=generator)


def _noisy_degree(graph: NeighborLists, generator: torch.Generator) -> Tensor:
    exact = _degree(graph, generator)
    return exact + torch.randn(exact.shape, generator=generator)


def _clipped_degree(graph: NeighborLists, generator: torch.Generator) -> Tensor:
    return _degree(graph, generator).clamp(max=math.log1p(CLIP))


def _coarse_degree(graph: NeighborLists, generator: torch.Generator) -> Tensor:
    degrees = np.diff(graph.indptr)
    below = np.searchsorted(np.sort(degrees), degrees) / max(len(degrees), 1)
    return torch.from_numpy(np.floor(below * QUANTILES)).float().unsqueeze(1)


FEATURES: dict[str, tuple[int, Callable[[NeighborLists, torch.Generator], Tensor]]] = {
    "constant": (1, _constant),
    "degree": (1, _degree),
    "random": (RANDOM_WIDTH, _random),
    "noisy-degree": (1, _noisy_degree),
    "clipped-degree": (1, _clipped_degree),
    "coarse-degree": (1, _coarse_degree),
}
"""Width and function of each kind of node features."""


@dataclass(frozen=True)
class PreparedGraph:
    """The tensors of a graph that do not change between forward passes.

    Attributes:
        graph: The graph.
        edge_index: Every edge in both directions.
        values: The topology scale's value of each node, if the policy has a scale.
    """

    graph: NeighborLists
    edge_index: Tensor
    values: Tensor | None


class Policy(nn.Module):
    """Scores nodes with a :class:`GraphStack`; nodes with larger scores come first.

    Args:
        conv: Builds a convolution from two widths, as in :class:`GraphStack`.
        dim: Width of the residual stream.
        depth: Number of blocks.
        features: Node features: ``constant`` (ones), ``degree`` (log(1 + degree)) or ``random`` (eight standard normal
            numbers, drawn again in every forward pass); or a part of the degree: ``noisy-degree`` adds a standard
            normal number to its logarithm, ``clipped-degree`` is at most that of 3, ``coarse-degree`` is the quarter of
            its rank.
        **stack: Other arguments of :class:`GraphStack`, such as placement, norm, scale and gate.

    Raises:
        UsageError: If an argument is unknown.
    """

    def __init__(
        self, conv: Callable[[int, int], nn.Module], dim: int, depth: int, *, features: str = "degree", **stack: Any
    ) -> None:
        super().__init__()
        expect_choice("features", features, FEATURES)
        self.features = features
        self.stack = GraphStack(conv, FEATURES[features][0], dim, 1, depth, **stack)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.stack.head.weight.device

    def prepare(self, graph: NeighborLists) -> PreparedGraph:
        """Edges and topology values of a graph, for :meth:`forward`."""
        source = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        edge_index = torch.from_numpy(np.stack([source, graph.indices.astype(np.int64)]))
        scale = self.stack.scale
        values = None if scale is None else topology(scale.source, edge_index, graph.num_nodes).to(self.device)
        return PreparedGraph(graph, edge_index.to(self.device), values)

    def forward(self, graphs: Sequence[PreparedGraph], generator: torch.Generator) -> Tensor:
        """The scores of all nodes, graph after graph.

        Args:
            graphs: Processed together, as one disjoint union.
            generator: Draws random features; on the CPU.
        """
        make_features = FEATURES[self.features][1]
        sizes = [prepared.graph.num_nodes for prepared in graphs]
        starts = np.cumsum([0, *sizes])
        x = torch.cat([make_features(prepared.graph, generator) for prepared in graphs]).to(self.stack.head.weight)
        shifted = [prepared.edge_index + int(start) for prepared, start in zip(graphs, starts, strict=False)]
        batch = torch.repeat_interleave(torch.tensor(sizes)).to(self.device)
        values = [prepared.values for prepared in graphs if prepared.values is not None]
        joined = torch.cat(values) if values else None
        return self.stack(x, torch.cat(shifted, 1), batch=batch, values=joined).squeeze(-1)

    @torch.no_grad()
    def score(self, graph: NeighborLists, seed: int = 0) -> NDArray[np.float64]:
        """One score per node, for ``ranking``, ``adaptive_order`` or ``greedy_set`` of :mod:`normplace.lab.tasks`.

        Scores are computed in float64 and ties are broken at random (:func:`break_ties`): if the network gives every
        node the same score, the order is random and does not follow rounding errors.

        Args:
            graph: The graph.
            seed: Of random features and of ties.
        """
        generator = torch.Generator().manual_seed(seed)
        # A copy costs more than a small graph: a policy that is in float64 already scores many graphs without one.
        wide = self if self.stack.head.weight.dtype == torch.float64 else copy.deepcopy(self).double()
        scores = wide([wide.prepare(graph)], generator).cpu().numpy()
        # Successive subgraphs of one graph must not all break ties alike.
        return break_ties(scores, np.random.default_rng([seed, graph.num_nodes, graph.num_edges]))


def break_ties(scores: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """The scores, with those that are equal up to rounding in random order.

    Neighbors in sorted order are tied if closer than 1e-10 of the largest magnitude, or of 1 if that is larger.

    Examples:
        >>> broken = break_ties(np.array([1.0, 1.0 + 1e-15, 2.0]), np.random.default_rng(0))
        >>> int(np.argmax(broken)), bool(np.ptp(broken[:2]) < 1e-10)
        (2, True)
    """
    if not len(scores):
        return scores
    tolerance = TIE * max(1.0, float(np.abs(scores).max()))
    order = np.argsort(scores, kind="stable")
    ascending = scores[order]
    starts = np.concatenate([[True], np.diff(ascending) > tolerance])
    tied = np.empty_like(scores)
    tied[order] = ascending[starts][np.cumsum(starts) - 1]
    return tied + generator.uniform(0, tolerance / 2, len(scores))
