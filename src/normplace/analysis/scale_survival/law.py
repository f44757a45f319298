"""The survival law: how much of a positive per-row scale passes a norm, predicted and measured.

A norm over features computes ``N(s x) = s (x - mean) / sqrt(s² var + eps)``. One unit of ``log s`` before it changes
the log-length of the output by ``eps / (s² var + eps)``, the logarithmic derivative. After the norm, one unit remains
one unit.

The effect size measures how much remains. A rank correlation measures only whether the order remains, and even a tiny
leak keeps the order, so a rank correlation detects a scale that a norm has practically erased.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice

DIRECTIONS = ("node", "graph")
STEP = 1e-3

Positive = TypeVar("Positive", float, Tensor)


def law(scale: Positive, variance: Positive, eps: float) -> Positive:
    """The share of a unit of log-scale that passes a norm over features: ``eps / (scale² variance + eps)``.

    Args:
        scale: The factor of the row.
        variance: The row's variance before scaling; for RMSNorm its mean square.
        eps: The eps of the norm.

    Raises:
        UsageError: If eps is negative or not a number.

    Examples:
        >>> law(1.0, 1.0, eps=1e-5) < 1e-5 < law(0.1, 1.0, eps=1e-5) < 1e-3
        True
    """
    if not eps >= 0:
        raise UsageError(f"eps must be zero or more, got {eps}.")
    if eps == 0:
        return 0 * scale * variance
    return eps / (scale * scale * variance + eps)


def predicted(x: Tensor, eps: float, centred: bool = True) -> float:
    """The effect of a norm over the last dimension of ``x``, predicted by the law.

    Each row follows the law with its own variance; the effect is their root mean square, weighted like the output.
    """
    rows = x.double()
    square = (rows - rows.mean(-1, keepdim=True) if centred else rows).square().mean(-1)
    weight = square / (square + eps).clamp(min=torch.finfo(torch.float64).tiny)
    share = law(torch.ones_like(square), square, eps)
    return float(((weight * share.square()).sum() / weight.sum()).sqrt())


def change(shape: torch.Size | tuple[int, ...], direction: str, generator: torch.Generator | None = None) -> Tensor:
    """A change of every row's log-scale by one unit.

    Args:
        shape: The rows: every dimension but the features.
        direction: ``node``: up in a random half of the rows and down in the other; ``graph``: up in all.
        generator: Draws the halves; seed 0 by default, so that measurements are repeatable.

    Raises:
        UsageError: If the direction is unknown.
    """
    expect_choice("direction", direction, DIRECTIONS)
    rows = math.prod(shape)
    if direction == "graph":
        return torch.ones(shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.randperm(rows, generator=generator)
    return (1.0 - 2.0 * (order % 2)).double().reshape(shape)


def slope(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, str]:
    """The value and derivative at 0 of a function of one number, and the method: ``jvp`` or ``difference``.

    Forward-mode differentiation is exact. If an operation does not support it, a central difference of
    step 1e-3 is used.
    """
    zero = torch.zeros((), dtype=torch.float64)
    try:
        with warnings.catch_warnings():
            # PyTorch warns when it loads forward-mode derivatives.
            warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
            value, derivative, *_ = torch.func.jvp(function, (zero,), (torch.ones_like(zero),))
    except RuntimeError:
        # An error that is unrelated to differentiation is raised again here.
        with torch.no_grad():
            up, down = function(zero + STEP), function(zero - STEP)
            return function(zero), (up - down) / (2 * STEP), "difference"
    return value.detach(), derivative.detach(), "jvp"


def length(value: Tensor) -> float:
    """The norm of an output, by which changes are divided.

    Raises:
        UsageError: If it is zero or not finite.
    """
    size = float(torch.linalg.vector_norm(value.double()))
    if size == 0:
        raise UsageError(
            "the output is zero everywhere, so relative changes are undefined: use weights that are not zero."
        )
    if not math.isfinite(size):
        raise UsageError("the output is not finite, so relative changes are undefined: check the inputs and weights.")
    return size


def relative(value: Tensor, derivative: Tensor) -> float:
    """The norm of the derivative divided by the norm of the value.

    Raises:
        UsageError: If the value is zero everywhere or not finite.
    """
    return float(torch.linalg.vector_norm(derivative.double())) / length(value)


def effect(
    function: Callable[[Tensor], Tensor], x: Tensor, direction: str = "node", generator: torch.Generator | None = None
) -> float:
    """The relative change of ``function(s x)`` per unit of log s, at s = 1.

    Args:
        function: A function of rows, such as a norm.
        x: Its input, features last.
        direction: ``node``: the scales of rows change against each other; ``graph``: all change alike.
        generator: Draws the rows whose scale rises.

    Returns:
        1 if the scale passes fully, 0 if it is erased.

    Raises:
        UsageError: If the direction is unknown or the output is zero everywhere.
    """
    rows = change(x.shape[:-1], direction, generator).to(x.device).unsqueeze(-1)
    value, derivative, _ = slope(lambda t: function(x * (t.to(x.device) * rows).exp().to(x.dtype)))
    return relative(value, derivative)
