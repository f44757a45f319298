"""Factorization of positive definite kernels, with errors that name the rows that make a kernel singular."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normplace.errors import UsageError

POWER_ROUNDS = 30
"""Rounds of the power iterations for the extreme eigenvalues."""


class Eigen(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    values: Tensor
    vectors: Tensor


def rounding_floor(size: int, dtype: torch.dtype) -> float:
    """The relative size below which a pivot or an eigenvalue of an N × N kernel is rounding."""
    return 4 * max(4.0, size**0.5) * torch.finfo(dtype).eps


def negative(values: Tensor, dtype: torch.dtype) -> UsageError | None:
    """The error for ascending eigenvalues of a matrix that is not a kernel; None if rounding explains negative ones.

    Args:
        values: The eigenvalues.
        dtype: The dtype of the matrix.
    """
    low = float(values[0])
    if low >= -100 * rounding_floor(len(values), dtype) * float(values.abs().max()):
        return None
    return UsageError(
        f"kernel_train has the negative eigenvalue {low:.3g}, so it is not a kernel: pass Θ(X, X) of the training "
        "inputs."
    )


def singular(kernel: Tensor, row: int, targets: Tensor) -> UsageError:
    """The error for a kernel that is singular at ``row``; it names the duplicate of that row, if there is one."""
    if (refusal := negative(torch.linalg.eigvalsh(kernel.double()), kernel.dtype)) is not None:
        return refusal
    diagonal = kernel.diagonal()
    distance = diagonal + diagonal[row] - 2 * kernel[row]
    distance[row] = torch.inf
    nearest = int(distance.argmin())
    # A squared feature distance is a difference of diagonal entries and has their rounding error.
    if float(distance[nearest]) <= 1e3 * torch.finfo(kernel.dtype).eps * float(diagonal[row].abs()):
        first, second = sorted((row, nearest))
        differ = " with different targets" if not torch.equal(targets[first], targets[second]) else ""
        return UsageError(
            f"training rows {first} and {second} are duplicates{differ}, so the kernel is singular: "
            "remove one of them, or pass jitter > 0 (jitter='auto' of predict finds the smallest)."
        )
    return UsageError(
        f"the kernel is numerically singular at training row {row}: remove similar rows, or pass jitter > 0 "
        "(jitter='auto' of predict finds the smallest)."
    )


def cholesky(kernel: Tensor, jitter: float, dtype: torch.dtype) -> Tensor | int:
    """The Cholesky factor of kernel + jitter, or the index of the first row with an unreliable pivot.

    A pivot is the squared length of a row's residual after projection onto the previous rows. A pivot at rounding level
    may pass LAPACK's sign test by chance, but its inverse is noise.
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
    """The row with the largest entry in the smallest eigenvector."""
    return int(spectrum.vectors[:, 0].abs().argmax())


def extreme_eigenvalues(kernel: Tensor, factor: Tensor, jitter: float) -> tuple[float, float]:
    """Power-iteration estimates (λ_min from above, λ_max from below) of kernel + jitter, O(N²) per round."""
    shifted = kernel.double()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(len(kernel), 1, generator=generator, dtype=torch.float64).to(shifted.device)
    low = high = start / start.norm()
    for _ in range(POWER_ROUNDS):
        high = shifted @ high + jitter * high
        high = high / high.norm()
        low = torch.cholesky_solve(low, factor)
        low = low / low.norm()
    quotients = [float((v * (shifted @ v)).sum()) + jitter for v in (low, high)]
    return quotients[0], quotients[1]
