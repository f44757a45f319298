"""Gaussian moments of GELU in closed form, and of SiLU as a mixture of GELUs.

GELU: with D = (1+a)(1+b) − c² and c = ρ√(ab), Stein's lemma and the Gaussian integrals that remain give

    E φφ   = c/4 + c atan2(c, √D)/2π + [ab − c² + c²(1/(1+a) + 1/(1+b))] / (2π√D)
    E φ'φ' = 1/4 + atan2(c, √D)/2π + c (1/(1+a) + 1/(1+b)) / (2π√D) + c / (2π D^{3/2})
    E φ    = a / √(2π(1+a)),

which agrees with the kernel of Tsuchida et al. 2021 (arXiv 2002.08517).

SiLU: the logistic distribution is a normal one with the random scale 2K, where K has Kolmogorov's distribution (Andrews
and Mallows 1974). So u sigmoid(u) is the mean of u Φ(u/s) = s GELU(u/s) over s = 2K. A Gauss rule for s turns each
moment into a sum of GELU's, at any variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, atan2

from normplace.ntk.infinite_kernel.moments import Moments

NODES = 12
"""Nodes of the Gauss rule; the sigmoid that it implies differs from the exact one by less than 3e-8 everywhere."""


@dataclass(frozen=True)
class Gelu(Moments):
    """φ(u) = u Φ(u), with Φ the normal distribution function."""

    def product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ(u)φ(v)."""
        c, root, shares, rest = _parts(a, b, rho)
        angle = atan2(c, root)
        return c / 4 + (c * angle + (rest + c.square() * shares) / root) / (2 * math.pi)

    def slope_product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ'(u)φ'(v)."""
        c, root, shares, _ = _parts(a, b, rho)
        return 0.25 + (atan2(c, root) + c * shares / root + c / root**3) / (2 * math.pi)

    def mean(self, a: Tensor) -> Tensor:
        """E φ(u)."""
        return a / (2 * math.pi * (1 + a)).sqrt()


def _parts(a: Tensor, b: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """c, √D, 1/(1+a) + 1/(1+b), and ab − c² without cancellation."""
    c = rho * (a.sqrt() * b.sqrt())
    rest = a * b * ((1 - rho) * (1 + rho)).clamp(min=0)
    return c, (1 + a + b + rest).sqrt(), 1 / (1 + a) + 1 / (1 + b), rest


@dataclass(frozen=True)
class Silu(Moments):
    """φ(u) = u sigmoid(u)."""

    def product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ(u)φ(v)."""
        return sum(
            (weight * s * t * _GELU.product(a / s**2, b / t**2, rho) for weight, s, t in _pairs()),
            start=torch.zeros_like(rho),
        )

    def slope_product(self, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        """E φ'(u)φ'(v)."""
        return sum(
            (weight * _GELU.slope_product(a / s**2, b / t**2, rho) for weight, s, t in _pairs()),
            start=torch.zeros_like(rho),
        )

    def mean(self, a: Tensor) -> Tensor:
        """E φ(u)."""
        scales, weights = logistic_scales()
        return sum((w * s * _GELU.mean(a / s**2) for s, w in zip(scales, weights, strict=True)), torch.zeros_like(a))


_GELU = Gelu()


def _pairs() -> list[tuple[float, float, float]]:
    """Weight and both scales of every pair of nodes."""
    scales, weights = logistic_scales()
    return [(w * v, s, t) for s, w in zip(scales, weights, strict=True) for t, v in zip(scales, weights, strict=True)]


@cache
def logistic_scales(nodes: int = NODES) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights of the Gauss rule for s = 2K: sigmoid(u) ≈ Σ w Φ(u/s).

    Lanczos' method on a fine discretization of Kolmogorov's density gives the recurrence of its orthogonal polynomials;
    the eigenvalues of that matrix are the nodes (Golub and Welsch 1969).

    Args:
        nodes: Number of nodes.
    """
    cells = 20_000
    k = (torch.arange(cells, dtype=torch.float64) + 0.5) * (6 / cells)
    order = torch.arange(1, 60, dtype=torch.float64)[:, None]
    # Below 0.15 the alternating series only cancels; the density there is under 1e-20.
    terms = (-1) ** (order + 1) * order.square() * torch.exp(-2 * order.square() * k.square())
    density = torch.where(k > 0.15, 8 * k * terms.sum(0), 0).clamp(min=0)
    mass = density / density.sum()
    vector, previous, beta = mass.sqrt(), torch.zeros_like(mass), 0.0
    diagonal, off = [], []
    basis = [vector]
    for _ in range(nodes):
        applied = 2 * k * vector
        alpha = float(applied @ vector)
        diagonal.append(alpha)
        applied = applied - alpha * vector - beta * previous
        for one in basis:
            applied -= (applied @ one) * one
        beta = float(applied.norm())
        off.append(beta)
        previous, vector = vector, applied / beta
        basis.append(vector)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    side = torch.tensor(off[:-1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(matrix + torch.diag(side, 1) + torch.diag(side, -1))
    return tuple(values.tolist()), tuple(vectors[0].square().tolist())
