"""A small graph, its features and the simplest convolution, for tests of graph networks."""

from __future__ import annotations

import torch
from torch import nn

RING = torch.tensor([[0, 1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 2], [1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 2, 0]])
DEGREE = torch.tensor([3.0, 2.0, 3.0, 2.0, 2.0])


class SumConv(nn.Linear):
    """The simplest convolution: a linear map of a node and the sum of its neighbors, weighted if edges have weights."""

    def forward(self, x, edge_index, edge_weight=None):
        sent = x[edge_index[0]] if edge_weight is None else x[edge_index[0]] * edge_weight[:, None]
        return super().forward(x.index_add(0, edge_index[1], sent))


def features(n=5, dim=3, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
