"""Conjugate gradients with several right-hand sides, for kernel systems that are too large to factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError

# Largest size of the Lanczos matrix; its extreme eigenvalues converge much earlier.
_RITZ_SIZE = 400


@dataclass(frozen=True)
class ConjugateResult:
    """The solution of A x = b and its accuracy.

    Attributes:
        solution: x, one column per right-hand side.
        iterations: Number of products with A, without the final check.
        residual: The largest ‖b − A x‖/‖b‖ over the columns, computed from x.
        converged: Whether that residual met the tolerance.
        lambda_min: Smallest Ritz value: an upper estimate of A's smallest eigenvalue.
        lambda_max: Largest Ritz value: a lower estimate of A's largest eigenvalue.
    """

    solution: Tensor
    iterations: int
    residual: float
    converged: bool
    lambda_min: float
    lambda_max: float


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], rhs: Tensor, *, tolerance: float, max_iterations: int
) -> ConjugateResult:
    """Solve A x = rhs for a symmetric positive definite A given by its products.

    Args:
        product: Maps columns (N, k) to A times them.
        rhs: Right-hand sides (N, k), float64.
        tolerance: Relative residual at which a column has converged.
        max_iterations: Largest number of products.

    Raises:
        UsageError: If A is not positive definite, or a product is not finite.
    """
    norms = rhs.norm(dim=0)
    goal = tolerance * norms
    solution = torch.zeros_like(rhs)
    residual = rhs.clone()
    direction = residual.clone()
    squared = residual.square().sum(0)
    # The column whose coefficients give the eigenvalue estimates must not be zero.
    reference = int(norms.argmax())
    steps: list[float] = []
    ratios: list[float] = []
    iterations = 0
    while iterations < max_iterations and bool((squared.sqrt() > goal).any()):
        image = product(direction)
        iterations += 1
        curvature = (direction * image).sum(0)
        active = squared.sqrt() > goal
        if not bool(torch.isfinite(curvature).all()):
            raise UsageError("a product with the kernel is not finite: check the kernel.")
        if bool((curvature[active] <= 0).any()):
            raise UsageError("the kernel is singular or not positive definite: drop duplicate rows or pass jitter > 0.")
        # Converged columns take zero steps, so that rounding does not change them.
        step = torch.where(active, squared / torch.where(active, curvature, 1), 0)
        solution += step * direction
        residual -= step * image
        new = residual.square().sum(0)
        ratio = torch.where(active, new / torch.where(active, squared, 1), 0)
        if bool(active[reference]) and len(steps) < _RITZ_SIZE:
            steps.append(float(step[reference]))
            ratios.append(float(ratio[reference]))
        direction = residual + ratio * direction
        squared = torch.where(active, new, squared)
    gap = (rhs - product(solution)).norm(dim=0)
    relative = float((gap / torch.where(norms > 0, norms, 1)).max())
    low, high = _ritz_range(steps, ratios)
    # Rounding separates the recursive residual from the true one; a factor of ten is a usual tolerance.
    return ConjugateResult(solution, iterations, relative, relative <= 10 * tolerance, low, high)


def _ritz_range(steps: list[float], ratios: list[float]) -> tuple[float, float]:
    """Extreme eigenvalues of the Lanczos matrix, from the coefficients of conjugate gradients."""
    if not steps:
        return float("nan"), float("nan")
    size = len(steps)
    lanczos = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        lanczos[i, i] = 1 / steps[i] + (ratios[i - 1] / steps[i - 1] if i else 0.0)
        if i + 1 < size:
            lanczos[i, i + 1] = lanczos[i + 1, i] = ratios[i] ** 0.5 / steps[i]
    values = torch.linalg.eigvalsh(lanczos)
    return float(values[0]), float(values[-1])
