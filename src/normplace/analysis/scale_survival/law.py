"""How much of a positive per-row scalar is left after a function, as an effect size: the law, and its measurement.

A norm over features obeys ``N(s x) = s (x - mean) / sqrt(s² var + eps)``. Taking the logarithm's derivative, one unit
of ``log s`` before it changes the log-length of what comes out by ``eps / (s² var + eps)``: nothing but what eps lets
through. After it, one unit stays one unit.

An effect size says how much is left. A rank correlation only says whether the order is left, and the order survives any
leak however small, so it finds the scalar after a norm that has in effect erased it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown

DIRECTIONS = ("node", "graph")
STEP = 1e-3

Positive = TypeVar("Positive", float, Tensor)


def law(scale: Positive, variance: Positive, eps: float) -> Positive:
    """The share of a unit of log-scalar that a norm over features lets through: ``eps / (scale² variance + eps)``.

    Args:
        scale: The scalar the row is multiplied by.
        variance: The row's variance before it; for RMSNorm its mean square.
        eps: What the norm adds under its root.

    Raises:
        UsageError: If eps is negative or not a number.

    Example:
        >>> law(1.0, 1.0, eps=1e-5) < 1e-5 < law(0.1, 1.0, eps=1e-5) < 1e-3
        True
    """
    if not eps >= 0:
        raise UsageError(f"eps must be zero or more, got {eps}.")
    if eps == 0:
        return 0 * scale * variance
    return eps / (scale * scale * variance + eps)


def predicted(x: Tensor, eps: float, centred: bool = True) -> float:
    """What :func:`effect` will measure through a norm over the last dimension of ``x``, by the law.

    Every row follows the law of its own variance; the effect is their root mean square, weighted as the output is.

    Args:
        x: The rows before the norm.
        eps: What the norm adds under its root.
        centred: Whether it subtracts the mean (LayerNorm) or not (RMSNorm).
    """
    rows = x.double()
    square = (rows - rows.mean(-1, keepdim=True) if centred else rows).square().mean(-1)
    weight = square / (square + eps).clamp(min=torch.finfo(torch.float64).tiny)
    share = law(torch.ones_like(square), square, eps)
    return float(((weight * share.square()).sum() / weight.sum()).sqrt())


def change(shape: torch.Size | tuple[int, ...], direction: str, generator: torch.Generator | None = None) -> Tensor:
    """A change of every row's log-scalar by one unit.

    Args:
        shape: The rows: every dimension but the features.
        direction: ``node``: up in one half of the rows, drawn at random, and down in the other; ``graph``: up in all.
        generator: What draws the halves; seed 0 by default, so that two measurements agree.

    Raises:
        UsageError: If the direction is unknown.
    """
    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)
    rows = math.prod(shape)
    if direction == "graph":
        return torch.ones(shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.randperm(rows, generator=generator)
    return (1.0 - 2.0 * (order % 2)).double().reshape(shape)


def slope(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, str]:
    """The value at 0 of a function of one number, its derivative, and how that was found.

    By forward-mode differentiation, which is exact; by a central difference of step 1e-3 where some operation has none.
    """
    zero = torch.zeros((), dtype=torch.float64)
    try:
        with warnings.catch_warnings():
            # PyTorch's own, when it first loads what forward mode needs.
            warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
            value, derivative, *_ = torch.func.jvp(function, (zero,), (torch.ones_like(zero),))
    except RuntimeError:
        # A mistake that has nothing to do with differentiation is raised again here.
        with torch.no_grad():
            up, down = function(zero + STEP), function(zero - STEP)
            return function(zero), (up - down) / (2 * STEP), "difference"
    return value.detach(), derivative.detach(), "jvp"


def relative(value: Tensor, derivative: Tensor) -> float:
    """The derivative's size beside the value's.

    Raises:
        UsageError: If the value is zero everywhere, so that nothing can be relative to it.
    """
    size = float(torch.linalg.vector_norm(value.double()))
    if size == 0:
        raise UsageError(
            "the output is zero everywhere, so no change is relative to it: use weights that are not zero."
        )
    return float(torch.linalg.vector_norm(derivative.double())) / size


def effect(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    direction: str = "node",
    generator: torch.Generator | None = None,
) -> float:
    """The relative change of ``function(s x)`` per unit of log s, at s = 1.

    Args:
        function: From rows to anything, such as a norm.
        x: Its input, features last.
        direction: ``node``: the rows' scalars change against each other; ``graph``: all by the same factor.
        generator: What draws the rows that go up.

    Returns:
        1 where the scalar arrives in full, 0 where it is erased.

    Raises:
        UsageError: If the direction is unknown or the output is zero everywhere.
    """
    rows = change(x.shape[:-1], direction, generator).to(x.device).unsqueeze(-1)
    value, derivative, _ = slope(lambda t: function(x * (t.to(x.device) * rows).exp().to(x.dtype)))
    return relative(value, derivative)
