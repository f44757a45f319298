"""Gaussian moments of activations, which determine the kernels of an infinitely wide layer.

For centred Gaussians (u, v) with variances a, b and correlation ρ, a layer's kernels need E φ(u)φ(v), E
φ'(u)φ'(v), and, for a LayerNorm after the activation, E φ(u). Everything is written in (a, b, ρ)
rather than in the covariance, because the differences that cancel near ρ = ±1 are then products of small
numbers instead.

ReLU: Cho and Saul 2009 (the arc-cosine kernel of order 1). erf: Williams 1996. The leaky ReLU form and the
cancellation-free rewriting of the erf form are derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, atan2


class Moments(Protocol):
    """The moments of an activation; ``a`` and ``b`` are variances that broadcast against ``rho``."""

    def product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ(u)φ(v)."""
        ...

    def slope_product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ'(u)φ'(v)."""
        ...

    def square(self, a: Tensor) -> Tensor:
        """E φ(u)²: ``product`` at ρ = 1."""
        return self.product(a, a, torch.ones_like(a))

    def slope_square(self, a: Tensor) -> Tensor:
        """E φ'(u)²: ``slope_product`` at ρ = 1."""
        return self.slope_product(a, a, torch.ones_like(a))

    def mean(self, a: Tensor) -> Tensor:
        """E φ(u)."""
        ...


def _both_positive(rho: Tensor) -> tuple[Tensor, Tensor]:
    """(E relu(u)relu(v), P(u>0, v>0)) for unit variances."""
    sine = ((1 - rho) * (1 + rho)).clamp_(min=0).sqrt_()
    # π − acos ρ, which stays accurate near ρ = −1 where it is small.
    angle = atan2(sine, -rho)
    return (sine + rho * angle).clamp_(min=0).div_(2 * math.pi), angle / (2 * math.pi)


@dataclass(frozen=True)
class LeakyReLU:
    """φ(u) = u for u > 0 and slope·u below; slope 0 is the ReLU.

    Splitting φ(u) = relu(u) − s·relu(−u) gives E φφ = (1+s²) F(ρ) − 2s F(−ρ) and E φ'φ' = (1+s²) P(ρ) + 2s
    P(−ρ), with F and P the ReLU's own moments.
    """

    slope: float = 0.0

    def product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ(u)φ(v)."""
        value = _both_positive(rho)[0].mul_(1 + self.slope**2)
        if self.slope:
            value -= _both_positive(-rho)[0].mul_(2 * self.slope)
        return value.mul_(a.sqrt()).mul_(b.sqrt())

    def slope_product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ'(u)φ'(v)."""
        value = _both_positive(rho)[1].mul_(1 + self.slope**2)
        if self.slope:
            value += _both_positive(-rho)[1].mul_(2 * self.slope)
        return value

    def square(self, a: Tensor) -> Tensor:
        """E φ(u)²."""
        return a * ((1 + self.slope**2) / 2)

    def slope_square(self, a: Tensor) -> Tensor:
        """E φ'(u)²."""
        return a.new_full(a.shape, (1 + self.slope**2) / 2)

    def mean(self, a: Tensor) -> Tensor:
        """E φ(u)."""
        return a.sqrt() * ((1 - self.slope) / math.sqrt(2 * math.pi))


@dataclass(frozen=True)
class Erf:
    """φ(u) = erf(u).

    With d = (1+2a)(1+2b) − 4ρ²ab, E φφ = (2/π) atan2(2ρ√(ab), √d), the arcsine of Williams without its loss
    of digits at large variance, and E φ'φ' = (4/π)/√d. Written as 1 + 2a + 2b + 4ab(1−ρ²), d cannot fall
    below 1.
    """

    @staticmethod
    def _root(a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        return (4 * a * b * ((1 - rho) * (1 + rho)).clamp_(min=0)).add_(1 + 2 * a + 2 * b).sqrt_()

    def product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ(u)φ(v)."""
        return atan2(2 * rho * (a.sqrt() * b.sqrt()), self._root(a, b, rho)).mul_(2 / math.pi)

    def slope_product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ'(u)φ'(v)."""
        return self._root(a, b, rho).reciprocal_().mul_(4 / math.pi)

    def square(self, a: Tensor) -> Tensor:
        """E φ(u)²."""
        return atan2(2 * a, (1 + 4 * a).sqrt()).mul_(2 / math.pi)

    def slope_square(self, a: Tensor) -> Tensor:
        """E φ'(u)²."""
        return (1 + 4 * a).rsqrt_().mul_(4 / math.pi)

    def mean(self, a: Tensor) -> Tensor:
        """E φ(u), zero because erf is odd."""
        return a.new_zeros(a.shape)
