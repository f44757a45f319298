"""Positive definite kernel systems: factor, or say which rows make that impossible."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normplace.errors import UsageError


class Eigen(NamedTuple):
    """Eigenvalues in rising order, and the eigenvectors as columns."""

    values: Tensor
    vectors: Tensor


def rounding_floor(size: int, dtype: torch.dtype) -> float:
    """The relative size below which a pivot or an eigenvalue of an N x N kernel is rounding, not signal."""
    return 4 * max(4.0, size**0.5) * torch.finfo(dtype).eps


def singular(kernel: Tensor, row: int, targets: Tensor) -> UsageError:
    """The error for a kernel that is singular at ``row``, naming the twin of that row if it has one."""
    diagonal = kernel.diagonal()
    distance = diagonal + diagonal[row] - 2 * kernel[row]
    distance[row] = torch.inf
    twin = int(distance.argmin())
    # Squared feature distances carry the rounding of the diagonal they are differences of.
    if float(distance[twin]) <= 1e3 * torch.finfo(kernel.dtype).eps * float(diagonal[row].abs()):
        first, second = sorted((row, twin))
        differ = " with different targets" if not torch.equal(targets[first], targets[second]) else ""
        return UsageError(
            f"training rows {first} and {second} are duplicates{differ}, so the kernel is singular: "
            "drop one of them, or pass jitter > 0 (predict finds the least with jitter='auto')."
        )
    return UsageError(
        f"the kernel is numerically singular at training row {row}: its rows are combinations of one another "
        "to rounding; thin the data, or pass jitter > 0 (predict finds the least with jitter='auto')."
    )


def cholesky(kernel: Tensor, jitter: float, dtype: torch.dtype) -> Tensor | int:
    """The factor of kernel + jitter, or the first row at which it cannot be trusted.

    A pivot is what is left of a row's squared length after the rows before it explain their part; a pivot at
    rounding level passes LAPACK's test of sign by luck, and its inverse is noise.
    """
    shifted = kernel.double().clone()
    shifted.diagonal().add_(jitter)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if int(failed):
        return int(failed) - 1
    share = factor.diagonal().square() / shifted.diagonal()
    worst = int(share.argmin())
    return worst if float(share[worst]) < rounding_floor(len(kernel), dtype) else factor


def eigen(kernel: Tensor, jitter: float) -> Eigen:
    """The spectral decomposition of kernel + jitter in float64."""
    values, vectors = torch.linalg.eigh(kernel.double())
    return Eigen(values + jitter, vectors)


def weakest_row(spectrum: Eigen) -> int:
    """The row that carries most of the smallest eigenvector."""
    return int(spectrum.vectors[:, 0].abs().argmax())


def extreme_eigenvalues(kernel: Tensor, factor: Tensor, jitter: float, rounds: int = 30) -> tuple[float, float]:
    """Power-iteration estimates (λ_min from above, λ_max from below) of kernel + jitter, O(N²) a round."""
    shifted = kernel.double()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(len(kernel), 1, generator=generator, dtype=torch.float64).to(shifted.device)
    low = high = start / start.norm()
    for _ in range(rounds):
        high = shifted @ high + jitter * high
        high = high / high.norm()
        low = torch.cholesky_solve(low, factor)
        low = low / low.norm()
    quotients = [float((v * (shifted @ v)).sum()) + jitter for v in (low, high)]
    return quotients[0], quotients[1]
