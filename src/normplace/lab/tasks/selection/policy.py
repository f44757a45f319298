"""A policy: a graph network that scores every node, and the orders its scores stand for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normplace.errors import unknown
from normplace.lab.tasks.selection.graph import Graph
from normplace.models.graph import GraphStack
from normplace.models.topology import topology

RANDOM_WIDTH = 8
# Scores closer than this, relative to the largest, differ by rounding: float64 through a few dozen layers keeps more.
TIE = 1e-10


def _constant(graph: Graph, generator: torch.Generator) -> Tensor:
    return torch.ones(graph.num_nodes, 1)


def _degree(graph: Graph, generator: torch.Generator) -> Tensor:
    return torch.from_numpy(np.log1p(graph.degrees)).float().unsqueeze(1)


def _random(graph: Graph, generator: torch.Generator) -> Tensor:
    return torch.randn(graph.num_nodes, RANDOM_WIDTH, generator=generator)


INPUTS: dict[str, tuple[int, Callable[[Graph, torch.Generator], Tensor]]] = {
    "constant": (1, _constant),
    "degree": (1, _degree),
    "random": (RANDOM_WIDTH, _random),
}


@dataclass(frozen=True)
class Prepared:
    """A graph as a policy reads it.

    Attributes:
        graph: The graph.
        edge_index: Both directions of every edge.
        values: The scale's scalar of each node, if the policy has a scale.
    """

    graph: Graph
    edge_index: Tensor
    values: Tensor | None


class Policy(nn.Module):
    """Scores nodes with a :class:`GraphStack`; a larger score comes earlier in the order.

    Args:
        conv: Builds a convolution from two widths, as :class:`GraphStack` takes it.
        dim: Width of the stream.
        depth: Number of blocks.
        features: What a node brings: ``constant`` (a one), ``degree`` (log(1 + degree)) or ``random`` (eight normal
            numbers, drawn anew whenever the graph is read).
        **stack: Passed to :class:`GraphStack`: placement, norm, scale, gate and so on.

    Raises:
        UsageError: If an argument is unknown.
    """

    def __init__(
        self, conv: Callable[[int, int], nn.Module], dim: int, depth: int, *, features: str = "degree", **stack: Any
    ) -> None:
        super().__init__()
        if features not in INPUTS:
            raise unknown("input", features, INPUTS)
        self.features = features
        self.stack = GraphStack(conv, INPUTS[features][0], dim, 1, depth, **stack)

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.stack.head.weight.device

    def prepare(self, graph: Graph) -> Prepared:
        """What does not change from one reading of the graph to the next."""
        source = np.repeat(np.arange(graph.num_nodes), graph.degrees)
        edge_index = torch.from_numpy(np.stack([source, graph.indices.astype(np.int64)]))
        scale = self.stack.scale
        values = None if scale is None else topology(scale.source, edge_index, graph.num_nodes).to(self.device)
        return Prepared(graph, edge_index.to(self.device), values)

    def forward(self, graphs: Sequence[Prepared], generator: torch.Generator) -> Tensor:
        """The score of every node, graph after graph.

        Args:
            graphs: Read together, as one disjoint union.
            generator: Draws random features; on the CPU.
        """
        make = INPUTS[self.features][1]
        sizes = [one.graph.num_nodes for one in graphs]
        starts = np.cumsum([0, *sizes])
        x = torch.cat([make(one.graph, generator) for one in graphs]).to(self.stack.head.weight)
        edge_index = torch.cat([one.edge_index + int(start) for one, start in zip(graphs, starts, strict=False)], 1)
        batch = torch.repeat_interleave(torch.tensor(sizes)).to(self.device)
        known = [one.values for one in graphs if one.values is not None]
        values = torch.cat(known) if known else None
        return self.stack(x, edge_index, batch=batch, values=values).squeeze(-1)

    @torch.no_grad()
    def score(self, graph: Graph, seed: int = 0) -> NDArray[np.float64]:
        """One number per node, for :func:`ranking`, :func:`adaptive_order` or :func:`greedy_set`.

        Computed in float64, with ties broken at random (:func:`break_ties`): where the network gives every node the
        same score, the order is a random one, not that of rounding errors.

        Args:
            graph: Any graph.
            seed: Of random features and of ties.
        """
        generator = torch.Generator().manual_seed(seed)
        wide = copy.deepcopy(self).double()
        scores = wide([wide.prepare(graph)], generator).cpu().numpy()
        # Graphs that are scored in turn, as parts of one are, must not all break ties alike.
        return break_ties(scores, np.random.default_rng([seed, graph.num_nodes, graph.num_edges]))


def break_ties(scores: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Scores of which those that agree up to rounding are in random order.

    Neighbours in the sorted scores closer than 1e-10 of the largest magnitude, or of 1 if that is larger, are ties.

    Args:
        scores: In float64.
        generator: Draws the order of ties.

    Example:
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
