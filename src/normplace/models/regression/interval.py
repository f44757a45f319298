"""The interval that contains every output of a normalized MLP, whatever its input.

A LayerNorm or RMSNorm without gain maps any vector of width H into the ball of radius √H. Each later layer maps a
ball that is cut by a box into another: an activation with |φ(u)| ≤ |u| does not enlarge the ball, and a linear map
enlarges it by its spectral norm. The head's rows then give one interval per output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.models.mlp import MLP, Dense

CONTRACTING = ("relu", "gelu", "silu", "tanh")
"""Activations with |φ(u)| ≤ |u|."""
_LOWEST = {"relu": 0.0, "gelu": -0.17, "silu": -0.2785, "tanh": -1.0}
"""A lower bound of each activation: gelu's minimum is -0.16997, silu's -0.27846."""


@dataclass(frozen=True)
class _Region:
    """Vectors h with ``‖h‖ ≤ radius`` and ``low ≤ h ≤ high``."""

    radius: Tensor
    low: Tensor
    high: Tensor

    def through_linear(self, weight: Tensor, bias: Tensor) -> _Region:
        """A region that contains ``weight @ h + bias``."""
        positive, negative = weight.clamp(min=0), weight.clamp(max=0)
        # An infinite side times a zero weight is zero, not NaN.
        high = bias + torch.minimum(
            self._along(weight, self.low, self.high),
            _product(positive, self.high) + _product(negative, self.low),
        )
        low = bias + torch.maximum(
            -self._along(-weight, self.low, self.high),
            _product(positive, self.low) + _product(negative, self.high),
        )
        radius = torch.linalg.matrix_norm(weight, 2) * self.radius + bias.norm()
        return _Region(radius, low, high).tightened()

    def _along(self, weight: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The largest ``weight @ h`` in the ball; weights that cannot contribute a positive term are left out."""
        useful = ((weight > 0) & (high > 0)) | ((weight < 0) & (low < 0))
        norm = torch.where(useful, weight, 0).norm(dim=1)
        return torch.where(norm > 0, norm * self.radius, 0)

    def through_activation(self, name: str) -> _Region:
        """A region that contains ``φ(h)``."""
        low = self.low.clamp(max=0).clamp(min=_LOWEST[name])
        high = self.high.clamp(min=0)
        if name == "tanh":
            high = high.clamp(max=1)
        return _Region(self.radius, low, high).tightened()

    def tightened(self) -> _Region:
        """The same set with the radius and the box limited by each other."""
        corner = torch.maximum(self.low.abs(), self.high.abs()).norm()
        radius = torch.minimum(self.radius, corner)
        return _Region(radius, torch.maximum(self.low, -radius), torch.minimum(self.high, radius))


def _product(weight: Tensor, side: Tensor) -> Tensor:
    return torch.where(weight == 0, 0, weight * side).sum(1)


@torch.no_grad()
def output_interval(mlp: MLP, activation: str, norm_layers: frozenset[int]) -> Tensor:
    """The lowest and highest value that each output can have over all inputs, as (outputs, 2).

    Args:
        mlp: A plain MLP whose norms have no gain and are before the activation.
        activation: Its activation, one of :data:`CONTRACTING`.
        norm_layers: The hidden layers with a norm, counted from 1.
    """
    hidden = [module for block in mlp.blocks for module in block.modules() if isinstance(module, Dense)]
    first = hidden[0].weight
    infinity = first.new_tensor(math.inf)
    region = _Region(infinity, *(first.new_full((mlp.in_features,), sign * math.inf) for sign in (-1, 1)))
    for number, dense in enumerate(hidden, start=1):
        width = dense.out_features
        if number in norm_layers:
            radius = first.new_tensor(math.sqrt(width))
            region = _Region(radius, -radius.expand(width), radius.expand(width))
        else:
            region = region.through_linear(dense.weight, dense.bias)
        region = region.through_activation(activation)
    output = region.through_linear(mlp.head.weight, mlp.head.bias)
    return torch.stack([output.low, output.high], dim=1)
