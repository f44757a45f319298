"""Edge encoders with the parameters of the published networks, whose result is not stored for every edge.

``GENConv`` reads ``weight`` and ``bias`` of the map of its edge features, and ``weight`` of the table of its edge
types. The published encoders are sums of embeddings or two linear maps in sequence, so their table or product is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normplace.models.graph_parts import SumOfEmbeddings


class LinearInSequence(nn.Module):
    """Two linear maps in sequence, as one: one that all layers share, and one of the layer."""

    def __init__(self, shared: nn.Linear, dim: int) -> None:
        super().__init__()
        self.shared, self.own = shared, nn.Linear(shared.out_features, dim)
        self.in_features, self.out_features = shared.in_features, dim

    @property
    def weight(self) -> Tensor:
        """The weight of the composed map."""
        return self.own.weight @ self.shared.weight

    @property
    def bias(self) -> Tensor:
        """The bias of the composed map."""
        return self.own.weight @ self.shared.bias + self.own.bias


class CategoryTable(SumOfEmbeddings):
    """The sum of embeddings for every combination of categories; see :class:`CombineCategories`."""

    @property
    def weight(self) -> Tensor:
        """One row for each combination."""
        total, *others = self.table.split(self.sizes)
        for rows in others:
            total = (total[:, None] + rows).flatten(0, 1)
        return total


class CombineCategories(nn.Module):
    """The index of each combination of categories, the last feature counting fastest."""

    strides: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        strides = [math.prod(sizes[feature + 1 :]) for feature in range(len(sizes))]
        self.register_buffer("strides", torch.tensor(strides), persistent=False)

    def forward(self, categories: Tensor) -> Tensor:
        """The index for each row of categories, which must be in range."""
        return (categories * self.strides).sum(1)
