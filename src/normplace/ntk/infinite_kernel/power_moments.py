"""Gaussian moments of powers of ReLU, max(u, 0)^n: the arc-cosine kernels of order n (Cho and Saul 2009)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, atan2


@dataclass(frozen=True)
class ReluPower:
    """φ(u) = max(u, 0)^power, positively homogeneous of that degree.

    With θ = acos ρ, E φφ = (ab)^{n/2} J_n(θ)/2π and E φ'φ' = n² (ab)^{(n−1)/2} J_{n−1}(θ)/2π.

    Attributes:
        power: 2 or 3.
    """

    power: int

    def product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ(u)φ(v)."""
        return _angular(self.power, rho) * (a.sqrt() * b.sqrt()) ** self.power / (2 * math.pi)

    def slope_product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ'(u)φ'(v)."""
        n = self.power
        return n**2 * _angular(n - 1, rho) * (a.sqrt() * b.sqrt()) ** (n - 1) / (2 * math.pi)

    def square(self, a: Tensor) -> Tensor:
        """E φ(u)²: half of the moment of order 2n."""
        return a**self.power * (_double_factorial(2 * self.power - 1) / 2)

    def slope_square(self, a: Tensor) -> Tensor:
        """E φ'(u)²."""
        n = self.power
        return a ** (n - 1) * (n**2 * _double_factorial(2 * n - 3) / 2)

    def mean(self, a: Tensor) -> Tensor:
        """E φ(u): half of the absolute moment of order n."""
        n = self.power
        return a ** (n / 2) * (2 ** (n / 2) * math.gamma((n + 1) / 2) / (2 * math.sqrt(math.pi)))


def _angular(order: int, rho: Tensor) -> Tensor:
    """J_n(acos ρ) for n from 1 to 3."""
    sine = ((1 - rho) * (1 + rho)).clamp(min=0).sqrt()
    angle = atan2(sine, -rho)  # π − acos ρ
    if order == 1:
        value = sine + rho * angle
    elif order == 2:
        value = 3 * rho * sine + angle * (1 + 2 * rho.square())
    else:
        value = sine * (4 + 11 * rho.square()) + angle * rho * (9 + 6 * rho.square())
    return value.clamp(min=0)


def _double_factorial(n: int) -> int:
    return math.prod(range(n, 0, -2))
