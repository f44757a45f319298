"""Networks of equal parameter count, for fair comparisons."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from normplace._shared.modules import count_parameters
from normplace.errors import UsageError

TOLERANCE = 0.02


def matched_width(
    build: Callable[[int], nn.Module], parameters: int, *, multiple: int = 8, tolerance: float = TOLERANCE
) -> int:
    """The width at which ``build(width)`` has about the given number of parameters.

    Args:
        build: Builds a network from a width; called on the meta device.
        parameters: The wanted number of parameters.
        multiple: The width is a multiple of this.
        tolerance: Largest allowed relative difference.

    Raises:
        UsageError: If no width is within the tolerance.

    Examples:
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
    nearest = size(best)
    if abs(nearest - parameters) > tolerance * parameters:
        raise UsageError(
            f"no width that is a multiple of {multiple} is within {tolerance:.0%} of {parameters:,} parameters; the "
            f"nearest, {best * multiple}, has {nearest:,}: choose a smaller multiple."
        )
    return best * multiple
