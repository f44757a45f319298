"""Sequences along straight lines, ``f(i) = a + b i`` with standard normal a and b, extrapolated beyond training.

Figure 7 of "Just One Layer Norm Guarantees Stable Extrapolation" (arXiv 2505.14512) trains on positions 1 to 30 and
tests on 20 to 100. We interpret this as a continuation: the model reads the first 20 values and generates the rest. The
paper does not state this, nor how values are scaled; we divide by the standard deviation of the training values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

TRAIN_LENGTH, PROMPT_LENGTH, TEST_LENGTH = 30, 20, 100
SCALE = math.sqrt(1 + sum(i * i for i in range(1, TRAIN_LENGTH + 1)) / TRAIN_LENGTH)
"""Standard deviation of ``a + b i`` over a, b and the training positions."""


def line_sequences(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Random lines at positions 1 to ``length``, one per row, divided by :data:`SCALE`."""
    start, slope = torch.randn(2, count, 1, generator=generator)
    return (start + slope * torch.arange(1, length + 1)) / SCALE


@torch.no_grad()
def roll_out(model: Callable[[Tensor], Tensor], prompt: Tensor, length: int) -> Tensor:
    """The prompt and the model's autoregressive continuation."""
    values = prompt
    while values.shape[1] < length:
        values = torch.cat([values, model(values)[:, -1:]], dim=1)
    return values
