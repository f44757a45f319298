"""Activations by name, and the gain that preserves variance through each."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn

from normplace.errors import expect_choice


class Erf(nn.Module):
    """The error function; its infinite-width kernel has a closed form."""

    def forward(self, x: Tensor) -> Tensor:
        """``erf(x)``."""
        return torch.erf(x)


class ReluPower(nn.Module):
    """A power of ReLU, positively homogeneous of that degree; the square is that of Primer (arXiv 2109.08668).

    Args:
        power: The exponent.
    """

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        """``max(x, 0) ** power``."""
        return torch.relu(x) ** self.power

    def extra_repr(self) -> str:
        """The exponent."""
        return f"{self.power}"


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "erf": Erf,
    "relu2": partial(ReluPower, 2),
    "relu3": partial(ReluPower, 3),
}


def build_activation(name: str) -> nn.Module:
    """Build an activation by name.

    Raises:
        UsageError: If there is no such activation.
    """
    expect_choice("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


@cache
def variance_gain(name: str) -> float:
    """``1 / E[phi(u)²]`` for a standard normal u: 2 for ReLU, as in Kaiming initialization.

    The midpoint rule over ±12 standard deviations is exact to about ten digits for a piecewise-smooth integrand with
    Gaussian tails.
    """
    activation = build_activation(name)
    cells = 48_000
    width = 24 / cells
    u = torch.arange(cells, dtype=torch.float64, device="cpu").add_(0.5).mul_(width).sub_(12)
    density = torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)
    return 1 / float((activation(u).square() * density).sum() * width)
