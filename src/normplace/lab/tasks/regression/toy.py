"""One-dimensional regression, tested far outside the training data.

Figure 1 of "Just One Layer Norm Guarantees Stable Extrapolation" (Ziomek, Whittle, Osborne 2025, arXiv 2505.14512)
shows a sinusoid, a line and a parabola of 100 points each. The paper does not give ranges, frequency and noise; the
values here are ours.
"""

from __future__ import annotations

import math

import torch

from normplace.errors import expect_choice
from normplace.lab.tasks.regression.shifted import Regression

FUNCTIONS = {
    "sinusoid": lambda x: torch.sin(2 * x),
    "linear": lambda x: x,
    "quadratic": lambda x: x.square(),
}
EDGE = 3.0
NOISE = 0.1


def toy_data(name: str, points: int, generator: torch.Generator) -> Regression:
    """Points of one of :data:`FUNCTIONS`, uniform on [-EDGE, EDGE], with Gaussian noise.

    Raises:
        UsageError: If the name is unknown.
    """
    expect_choice("toy data", name, FUNCTIONS)
    x = (torch.rand(points, 1, generator=generator) * 2 - 1) * EDGE
    noise = NOISE * torch.randn(points, 1, generator=generator)
    return Regression(x, FUNCTIONS[name](x) + noise)


def growth_exponent(near: float, far: float, ratio: float) -> float:
    """The exponent p of a value that grows by ratio^p when its argument grows by ``ratio``: 0 bounded, 1 linear.

    Examples:
        >>> growth_exponent(3.0, 30.0, ratio=10)
        1.0
    """
    return math.log(far / near, ratio) if near > 0 and far > 0 else math.nan
