"""Small random graphs and policies for the tests of node selection."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("numba", reason="node selection needs numba")

from normplace.lab.tasks.selection import Graph, barabasi_albert, erdos_renyi
from normplace.models.policy import Policy


def small_graph(number: int, most: int = 40) -> Graph:
    """Sparse, dense, scale-free, edgeless and one-node graphs in turn."""
    generator = np.random.default_rng(number)
    n = int(generator.integers(1, most))
    if number % 4 == 0 and n > 3:
        return barabasi_albert(n, int(generator.integers(1, 3)), generator)
    return erdos_renyi(n, float(generator.choice([0.0, 0.05, 0.1, 0.3, 0.9])), generator)


def path(n: int) -> Graph:
    return Graph.from_edges([[i, i + 1] for i in range(n - 1)], n)


class NeighborMean(nn.Linear):
    """Mean aggregation, so that these tests do not need PyG."""

    def forward(self, x, edge_index):
        total = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        count = torch.zeros(len(x), dtype=x.dtype).index_add(0, edge_index[1], torch.ones_like(x[edge_index[0], 0]))
        return super().forward(total / count.clamp(min=1)[:, None] + x)


def policy(features="degree", **stack) -> Policy:
    torch.manual_seed(0)
    return Policy(NeighborMean, 16, 2, features=features, **{"placement": "post", **stack}).double()
