"""The mean prediction of a network trained in the kernel regime, at convergence or at a finite time.

In the kernel regime (Jacot, Gabriel and Hongler 2018; Lee et al. 2019) gradient flow on ½ Σ (f − y)² with
learning rate η moves the outputs by df/dt = −η Θ (f − y), so that

    f_t(x*) = f_0(x*) + Θ(x*, X) Θ⁻¹ (I − exp(−η t Θ)) (y − f_0(X)),

and t → ∞ is kernel regression, the mean of a noiseless Gaussian process with covariance Θ. For a loss
averaged over N samples, or without the ½, scale η accordingly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_number, expect_range, expect_whole
from normplace.ntk.checks import require_choice, require_columns, require_floating, require_kernel, require_same_device
from normplace.ntk.prediction.conjugate_gradients import conjugate_gradients
from normplace.ntk.prediction.factor import (
    cholesky,
    eigen,
    extreme_eigenvalues,
    negative,
    rounding_floor,
    singular,
    weakest_row,
)

_METHODS = ("auto", "cholesky", "eigh", "cg")

# A float64 factor of this size takes 2 GiB; for larger kernels "auto" uses conjugate gradients.
FACTOR_LIMIT = 16_000


@dataclass(frozen=True)
class Prediction:
    """A kernel prediction and its numerical accuracy.

    Attributes:
        mean: Predicted outputs at the test points, in the shape of the targets.
        variance: Variance over random initializations, (M,), if the NNGP kernel is given.
        weights: α with mean = f0 + kernel_test @ α, for other test points.
        method: "cholesky", "eigh" or "cg".
        jitter: Added to the kernel's diagonal.
        time: Training time, or None for convergence.
        residual: Largest relative residual of the linear system over the outputs.
        converged: False only if conjugate gradients did not reach the tolerance.
        iterations: Number of conjugate gradient steps; None for other methods.
        lambda_min: Smallest eigenvalue with the jitter (exact for "eigh", else an estimate from above).
        lambda_max: Largest eigenvalue with the jitter (exact for "eigh", else an estimate from below).
    """

    mean: Tensor
    variance: Tensor | None
    weights: Tensor
    method: str
    jitter: float
    time: float | None
    residual: float
    converged: bool
    iterations: int | None
    lambda_min: float
    lambda_max: float

    @property
    def condition(self) -> float:
        """λ_max/λ_min, a lower estimate unless the method is "eigh"."""
        return self.lambda_max / self.lambda_min if self.lambda_min > 0 else float("inf")

    def __str__(self) -> str:
        when = "at convergence" if self.time is None else f"at time {self.time:g}"
        steps = "" if self.iterations is None else f", {self.iterations} iterations"
        return (
            f"kernel prediction {when} at {len(self.mean)} points by {self.method}{steps}: "
            f"jitter {self.jitter:.3g}, residual {self.residual:.2e}"
            f"{'' if self.converged else ' (NOT converged)'}, condition {self.condition:.2e}"
        )

    __repr__ = __str__  # what a notebook shows


@dataclass(frozen=True)
class _Solution:
    weights: Tensor
    apply: Callable[[Tensor], Tensor] | None  # applies the inverse (or its finite-time form) to columns
    method: str
    jitter: float
    residual: float
    lambda_min: float
    lambda_max: float
    iterations: int | None = None
    converged: bool = True


def _jitters(kernel: Tensor, jitter: float | str) -> list[float]:
    """The values to add to the diagonal, in the order they are tried."""
    if isinstance(jitter, str) and jitter == "auto":
        mean = float(kernel.diagonal().double().mean())
        # Equal rows with different targets get weights of 1/jitter, so a jitter near eps would lose all digits.
        least = 0.01 * torch.finfo(kernel.dtype).eps ** 0.5 * mean
        return [0.0, *(least * 10.0**power for power in range(5))]
    if isinstance(jitter, str):
        raise UsageError(f"jitter must be a number or 'auto', not {jitter!r}.")
    expect_number("jitter", jitter, 0)
    return [float(jitter)]


def _relative(kernel: Tensor, jitter: float, weights: Tensor, wanted: Tensor, scale: Tensor) -> float:
    gap = (kernel.double() @ weights + jitter * weights - wanted).norm(dim=0)
    norms = scale.norm(dim=0)
    return float((gap / torch.where(norms > 0, norms, 1)).max())


def _by_cholesky(kernel: Tensor, error: Tensor, jitters: list[float]) -> _Solution:
    failed = 0
    for jitter in jitters:
        factor = cholesky(kernel, jitter, kernel.dtype)
        if isinstance(factor, Tensor):
            weights = torch.cholesky_solve(error, factor)
            low, high = extreme_eigenvalues(kernel, factor, jitter)
            residual = _relative(kernel, jitter, weights, error, error)

            def apply(columns: Tensor, factor: Tensor = factor) -> Tensor:
                return torch.cholesky_solve(columns, factor)

            return _Solution(weights, apply, "cholesky", jitter, residual, low, high)
        failed = factor
    raise singular(kernel, failed, error)


def _by_eigen(kernel: Tensor, error: Tensor, jitters: list[float], flow: float | None) -> _Solution:
    plain = eigen(kernel, 0.0)
    floor = rounding_floor(len(kernel), kernel.dtype) * float(plain.values[-1])
    # A finite time needs no inverse: directions in the kernel's null space do not move.
    if flow is None:
        jitter = next((jitter for jitter in jitters if float(plain.values[0]) + jitter > floor), None)
    else:
        jitter = jitters[0]
        if (refusal := negative(plain.values + jitter, kernel.dtype)) is not None:
            raise refusal
    if jitter is None:
        raise singular(kernel, weakest_row(plain), error)
    values = (plain.values + jitter).clamp(min=0)
    if flow is None:
        gain = values.reciprocal()
    else:
        # (1 − e^(−τλ))/λ, which tends to τ for λ → 0.
        nonzero = values * flow > 1e-12
        gain = torch.where(nonzero, -torch.expm1(-values * flow) / torch.where(nonzero, values, 1), flow)

    def apply(columns: Tensor) -> Tensor:
        return plain.vectors @ (gain[:, None] * (plain.vectors.T @ columns))

    weights = apply(error)
    reached = plain.vectors @ ((gain * values)[:, None] * (plain.vectors.T @ error))
    residual = _relative(kernel, jitter, weights, reached, error)
    return _Solution(weights, apply, "eigh", jitter, residual, float(values[0]), float(values[-1]))


def _by_conjugate(
    kernel: Tensor | Callable[[Tensor], Tensor], error: Tensor, jitter: float, tolerance: float, limit: int
) -> _Solution:
    def product(columns: Tensor) -> Tensor:
        if isinstance(kernel, Tensor):
            image = kernel @ columns.to(kernel.dtype)
        else:
            image = kernel(columns)
            if not isinstance(image, Tensor) or image.shape != columns.shape:
                raise UsageError(f"the kernel's product must keep its argument's shape {tuple(columns.shape)}.")
        return image.double() + jitter * columns

    result = conjugate_gradients(product, error, tolerance=tolerance, max_iterations=limit)
    if not result.converged:
        warnings.warn(
            f"conjugate gradients stopped after {result.iterations} iterations at relative residual "
            f"{result.residual:.2e}, above the tolerance {tolerance:.0e}: raise max_iterations or jitter, "
            "or factor the kernel.",
            RuntimeWarning,
            stacklevel=3,
        )
    return _Solution(
        weights=result.solution,
        apply=None,
        method="cg",
        jitter=jitter,
        residual=result.residual,
        lambda_min=result.lambda_min,
        lambda_max=result.lambda_max,
        iterations=result.iterations,
        converged=result.converged,
    )


def _initial_outputs(name: str, value: Tensor | None, rows: int, targets: Tensor) -> Tensor:
    """The initial outputs as columns; zero by default."""
    if value is None:
        return targets.new_zeros(rows, targets.shape[1])
    start = require_columns(name, value, rows)
    require_same_device(**{name: start, "targets": targets})
    if start.shape[1] != targets.shape[1]:
        raise UsageError(f"{name} has {start.shape[1]} output(s) and targets have {targets.shape[1]}: they must agree.")
    return start


def _variance(nngp: tuple[Tensor, Tensor, Tensor], kernel_test: Tensor, solution: _Solution) -> Tensor:
    """The diagonal of K** + A K Aᵀ − A K*ᵀ − K* Aᵀ (Lee et al. 2019), A = Θ(x*, X) Θ⁻¹ (I − exp(−η t Θ))."""
    if solution.apply is None:
        raise UsageError("the variance needs a factorization: do not pass nngp, or use method='cholesky' or 'eigh'.")
    if not isinstance(nngp, tuple | list) or len(nngp) != 3:
        raise UsageError("nngp must be three tensors: (train, test against train, test diagonal).")
    tests, rows = kernel_test.shape
    train = require_kernel("nngp[0] (train)", nngp[0]).double()
    cross = require_floating("nngp[1] (test, train)", nngp[1]).double()
    own = require_floating("nngp[2] (test diagonal)", nngp[2]).double()
    if train.shape != (rows, rows) or cross.shape != (tests, rows) or own.shape != (tests,):
        raise UsageError(
            f"nngp must be (train ({rows}, {rows}), test ({tests}, {rows}), test diagonal ({tests},)), "
            f"not {tuple(train.shape)}, {tuple(cross.shape)}, {tuple(own.shape)}."
        )
    require_same_device(kernel_test=kernel_test, train=train, cross=cross, own=own)
    transfer = solution.apply(kernel_test.T).T
    spread = own + ((transfer @ train) * transfer).sum(1) - 2 * (transfer * cross).sum(1)
    # The variance is nonnegative; negative values are rounding.
    return spread.clamp(min=0)


@torch.no_grad()
def predict(
    kernel_train: Tensor | Callable[[Tensor], Tensor],
    targets: Tensor,
    kernel_test: Tensor,
    *,
    time: float | None = None,
    learning_rate: float = 1.0,
    f0_train: Tensor | None = None,
    f0_test: Tensor | None = None,
    nngp: tuple[Tensor, Tensor, Tensor] | None = None,
    jitter: float | str = 0.0,
    method: str = "auto",
    tolerance: float = 1e-8,
    max_iterations: int | None = None,
) -> Prediction:
    """Predict the outputs of the network with this kernel after training.

    Args:
        kernel_train: Θ(X, X), or a function that multiplies columns (N, k) by it; a function requires conjugate
            gradients.
        targets: y, (N,) or (N, outputs). All outputs share the kernel.
        kernel_test: Θ(x*, X), (M, N).
        time: Gradient-flow training time; None trains to convergence.
        learning_rate: η; only η·time matters.
        f0_train: The untrained network's outputs at X; None means zero, the mean over initializations.
        f0_test: The same at the test points; pass both or neither.
        nngp: The NNGP kernels (train, (N, N); test against train, (M, N); test diagonal, (M,)), for the
            variance over random initializations (Lee et al. 2019). With the NNGP kernel itself as Θ this is
            the Bayesian posterior variance.
        jitter: Added to the kernel's diagonal; "auto" tries zero first, then the smallest value that makes the kernel
            nonsingular.
        method: "cholesky", "eigh", "cg", or "auto": eigh for a finite time, cg beyond 16,000 rows, else
            cholesky.
        tolerance: Relative residual at which conjugate gradients stop.
        max_iterations: Limit of conjugate gradient steps; None means ten per row, at most 10,000. A warning
            is issued if they do not converge.

    Returns:
        The prediction with its jitter, residual and condition number.

    Raises:
        UsageError: If the data are inconsistent or not finite, or the kernel is singular and ``jitter`` is zero.
    """
    require_choice("method", method, _METHODS)
    if (f0_train is None) != (f0_test is None):
        raise UsageError("f0_train and f0_test must be passed together: pass both or neither.")
    if time is not None:
        expect_number("time", time, 0)
    if max_iterations is not None:
        expect_whole(1, max_iterations=max_iterations)
    expect_number("learning_rate", learning_rate, 0, above=True)
    expect_number("tolerance", tolerance, 0, above=True)
    expect_range("tolerance", tolerance, below=1)
    outputs = require_floating("targets", targets)
    matrix = require_kernel("kernel_train", kernel_train) if not callable(kernel_train) else None
    rows = len(matrix) if matrix is not None else len(outputs) if outputs.ndim else 0
    y = require_columns("targets", outputs, rows)
    test = require_floating("kernel_test", kernel_test).detach().double()
    if test.ndim != 2 or test.shape[1] != rows:
        raise UsageError(f"kernel_test has shape {tuple(test.shape)}, but (test rows, {rows} training rows) is needed.")
    require_same_device(kernel_train=matrix, targets=y, kernel_test=test)
    error = y - _initial_outputs("f0_train", f0_train, rows, y)
    start = _initial_outputs("f0_test", f0_test, len(test), y)

    if method == "auto":
        large = matrix is None or rows > FACTOR_LIMIT
        method = "eigh" if time is not None else "cg" if large else "cholesky"
    if method == "cg":
        if time is not None:
            raise UsageError(
                "conjugate gradients compute the converged prediction only: use method='eigh' for a finite time."
            )
        if isinstance(jitter, str):
            raise UsageError("conjugate gradients need jitter as a number: 'auto' works by factoring.")
        limit = min(10 * rows, 10_000) if max_iterations is None else max_iterations
        solution = _by_conjugate(kernel_train, error, _jitters(y, jitter)[0], tolerance, limit)
    elif matrix is None:
        raise UsageError(f"method {method!r} needs the kernel as a matrix: pass a matrix, or use method='cg'.")
    elif method == "eigh":
        flow = None if time is None else time * learning_rate
        solution = _by_eigen(matrix, error, _jitters(matrix, jitter), flow)
    elif time is not None:
        raise UsageError("a Cholesky factor gives the converged prediction only: use method='eigh' for a finite time.")
    else:
        solution = _by_cholesky(matrix, error, _jitters(matrix, jitter))

    mean = start + test @ solution.weights
    return Prediction(
        mean=mean[:, 0] if targets.ndim == 1 else mean,
        variance=None if nngp is None else _variance(nngp, test, solution),
        weights=solution.weights[:, 0] if targets.ndim == 1 else solution.weights,
        method=solution.method,
        jitter=solution.jitter,
        time=time,
        residual=solution.residual,
        converged=solution.converged,
        iterations=solution.iterations,
        lambda_min=solution.lambda_min,
        lambda_max=solution.lambda_max,
    )
