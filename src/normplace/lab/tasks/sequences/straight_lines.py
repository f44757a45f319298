"""Sequences along straight lines, ``f(i) = a + b i`` with a and b standard normal, continued past their trained end.

Figure 7 of "Just One Layer Norm Guarantees Stable Extrapolation" (arXiv 2505.14512) learns positions 1 to 30 and tests
20 to 100. We read this as a continuation: the first 20 values are given, the rest is the model's own. Its text does not
say so, nor how values are scaled: dividing by the deviation of the training values is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

TRAIN_LENGTH, PROMPT_LENGTH, TEST_LENGTH = 30, 20, 100
SCALE = math.sqrt(1 + sum(i * i for i in range(1, TRAIN_LENGTH + 1)) / TRAIN_LENGTH)
"""Deviation of ``a + b i`` over a, b and the trained positions."""


def line_sequences(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Lines at positions 1 to ``length``, one row each, in units of :data:`SCALE`.

    Args:
        count: How many.
        length: Positions in each.
        generator: Source of a and b.
    """
    start, slope = torch.randn(2, count, 1, generator=generator)
    return (start + slope * torch.arange(1, length + 1)) / SCALE


@torch.no_grad()
def roll_out(model: Callable[[Tensor], Tensor], given: Tensor, length: int) -> Tensor:
    """The given values and the model's continuation of them, each value it predicts fed back to it.

    Args:
        model: From values (n, t) to its guess at each one's successor, (n, t).
        given: The first values, one row per sequence.
        length: Positions in the end.
    """
    values = given
    while values.shape[1] < length:
        values = torch.cat([values, model(values)[:, -1:]], dim=1)
    return values
