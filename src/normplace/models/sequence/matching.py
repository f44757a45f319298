"""Networks of equal size, so that a comparison is not one of parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from normplace.errors import UsageError

TOLERANCE = 0.02


def count_parameters(model: nn.Module) -> int:
    """How many numbers are trained, embeddings included; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def matched_width(
    build: Callable[[int], nn.Module], parameters: int, *, multiple: int = 8, tolerance: float = TOLERANCE
) -> int:
    """The width at which ``build(width)`` has nearly as many parameters as asked for.

    Args:
        build: From a width, whichever the caller wants to vary, to the network; called without memory for weights.
        parameters: How many it should have.
        multiple: What the width must be a multiple of.
        tolerance: The greatest difference allowed, as a share of that number.

    Raises:
        UsageError: If no such width comes near enough.

    Example:
        >>> matched_width(lambda width: nn.Linear(width, width), 64 * 65)
        64
    """

    def size(steps: int) -> int:
        with torch.device("meta"):
            return count_parameters(build(steps * multiple))

    high = 1
    while size(high) < parameters:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < parameters else (low, middle)
    best = min((steps for steps in (low, high) if steps), key=lambda steps: abs(size(steps) - parameters))
    found = size(best)
    if abs(found - parameters) > tolerance * parameters:
        raise UsageError(
            f"no width that is a multiple of {multiple} comes within {tolerance:.0%} of {parameters:,} parameters, the "
            f"nearest, {best * multiple}, has {found:,}: allow a smaller multiple."
        )
    return best * multiple
