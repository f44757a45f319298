"""Bounds on kernel predictions from the kernel's diagonal.

Ziomek, Whittle and Osborne (arXiv 2505.14512) show that one LayerNorm gives Θ(x, x) ≤ C for every x (Theorem
3.2) and therefore a bounded trained network for any data (Theorem 3.3). Two bounds follow from the Cauchy-Schwarz
inequality, because the prediction f(x) = Θ(x, X) Θ⁻¹ y is an inner product of features of length at most √C:

    |f(x)| ≤ √C √(yᵀ Θ⁻¹ y) ≤ √(C n / λ_min) max|y|        and, cruder,        |f(x)| ≤ C n max|y| / λ_min.

The first chain is ours; its middle term depends on the data and is by far the tightest. The formula of the paper's
bound was not available to us. A secondary summary gives s C max|y| / (λ_min |D|) with unspecified s. It is computed for
comparison, with s = 1 by default, and is unconfirmed: the steps of the proof do not give a bound that shrinks as 1/|D|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_number
from normplace.ntk.checks import require_columns, require_floating, require_kernel, require_same_device
from normplace.ntk.prediction.factor import eigen, rounding_floor, singular, weakest_row

_LABELS = {
    "from_norm": ("√C·√(yᵀΘ⁻¹y)", "provable"),
    "from_eigenvalue": ("√(C·n/λ_min)·max|y|", "provable"),
    "crude": ("C·n·max|y|/λ_min", "provable"),
    "as_summarised": ("s·C·max|y|/(λ_min·n)", "unconfirmed"),
}


@dataclass(frozen=True)
class Bound:
    """Bounds on |f(x)| for every x, and whether the predictions satisfy them.

    Attributes:
        lambda_min: Smallest eigenvalue of the training kernel, jitter included.
        diagonal_sup: C, the supremum of Θ(x, x).
        rows: n, the number of training samples.
        max_target: max|y|.
        from_norm: √C·√(yᵀΘ⁻¹y), provable.
        from_eigenvalue: √(C·n/λ_min)·max|y|, provable.
        crude: C·n·max|y|/λ_min, provable.
        as_summarised: s·C·max|y|/(λ_min·n), the paper's bound according to a secondary source; unconfirmed.
        scale: s.
        largest_prediction: max|f| over the predictions, or None.
    """

    lambda_min: float
    diagonal_sup: float
    rows: int
    max_target: float
    from_norm: float
    from_eigenvalue: float
    crude: float
    as_summarised: float
    scale: float
    largest_prediction: float | None

    @property
    def satisfied(self) -> dict[str, bool]:
        """Whether the predictions satisfy each bound; empty without predictions."""
        if self.largest_prediction is None:
            return {}
        # Equality is possible (one sample, predicted at itself), so the comparison allows for rounding.
        limit = self.largest_prediction * (1 - 1e-9)
        return {name: limit <= getattr(self, name) for name in _LABELS}

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for a results file."""
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "satisfied": self.satisfied}

    def __str__(self) -> str:
        lines = [
            f"bounds on |f(x)| for every x: n = {self.rows}, C = {self.diagonal_sup:.4g}, "
            f"λ_min = {self.lambda_min:.4g}, max|y| = {self.max_target:.4g}"
        ]
        if self.largest_prediction is not None:
            lines[0] += f", largest |prediction| = {self.largest_prediction:.4g}"
        for name, (formula, status) in _LABELS.items():
            verdict = "" if not self.satisfied else "  satisfied" if self.satisfied[name] else "  VIOLATED"
            note = f" (s = {self.scale:g})" if name == "as_summarised" else ""
            lines.append(f"  {formula:<22} {getattr(self, name):>12.4g}  {status}{note}{verdict}")
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


@torch.no_grad()
def bound(
    kernel_train: Tensor,
    targets: Tensor,
    diagonal_sup: float,
    *,
    predictions: Tensor | None = None,
    scale: float = 1.0,
    jitter: float = 0.0,
) -> Bound:
    """Bound the converged kernel prediction (with zero initial function) at every input.

    Args:
        kernel_train: Θ(X, X), (N, N).
        targets: y, (N,) or (N, outputs); with several outputs each bound is the largest over them.
        diagonal_sup: C with Θ(x, x) ≤ C for every x. It is exact for an infinite-width network with a norm and an
            estimate otherwise; the bounds are only as reliable.
        predictions: Predictions at any inputs, to compare with the bounds.
        scale: s in the summarised bound.
        jitter: Added to the kernel's diagonal, as in the prediction; the bounds remain valid.

    Returns:
        The bounds.

    Raises:
        UsageError: If the data are inconsistent, C is below the kernel's diagonal, or the kernel is singular (which
            the paper's Assumption 3.3 excludes).
    """
    kernel = require_kernel("kernel_train", kernel_train)
    y = require_columns("targets", targets, len(kernel))
    require_same_device(kernel_train=kernel, targets=y)
    expect_number("diagonal_sup", diagonal_sup, 0, above=True)
    expect_number("scale", scale, 0, above=True)
    expect_number("jitter", jitter, 0)
    largest_diagonal = float(kernel.diagonal().max())
    # A supremum over a grid may be below the data's maximum by rounding.
    if diagonal_sup < largest_diagonal * (1 - 1e3 * torch.finfo(kernel.dtype).eps):
        raise UsageError(
            f"diagonal_sup is {diagonal_sup:.6g}, but the training kernel's diagonal reaches {largest_diagonal:.6g}: "
            "C must bound Θ(x, x) everywhere."
        )
    spectrum = eigen(kernel, jitter)
    low = float(spectrum.values[0])
    if low <= rounding_floor(len(kernel), kernel.dtype) * float(spectrum.values[-1]):
        raise singular(kernel, weakest_row(spectrum), y)
    n = len(kernel)
    energy = ((spectrum.vectors.T @ y).square() / spectrum.values[:, None]).sum(0)
    top = float(y.abs().max())
    largest = None
    if predictions is not None:
        largest = float(require_floating("predictions", predictions).abs().max())
    return Bound(
        lambda_min=low,
        diagonal_sup=float(diagonal_sup),
        rows=n,
        max_target=top,
        from_norm=math.sqrt(diagonal_sup * float(energy.max())),
        from_eigenvalue=math.sqrt(diagonal_sup * n / low) * top,
        crude=diagonal_sup * n * top / low,
        as_summarised=scale * diagonal_sup * top / (low * n),
        scale=float(scale),
        largest_prediction=largest,
    )
