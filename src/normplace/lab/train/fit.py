"""Fit a regression on data that is held in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    learning_rate: float,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> float:
    """Minimise the mean squared error with Adam, in training mode, and leave the model in evaluation mode.

    Args:
        model: Changed in place; on the device of the data.
        x: Inputs, one row each.
        y: Targets, in the shape of the model's outputs.
        epochs: How often every row is seen.
        learning_rate: Adam's.
        batch_size: Rows in a step; by default, or when there are fewer, all of them.
        generator: Source of each epoch's order, on the CPU so that the order is the same on every device; needed when
            there are several steps in an epoch.

    Returns:
        The error over all rows after the last step.

    Raises:
        UsageError: If the batch size is no positive number, or there are batches and no generator.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
    # One kernel for all parameters: these networks are so small that the optimizer's many little ones would dominate.
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=x.device.type in ("cpu", "cuda"))
    model.train()
    for _ in range(epochs):
        for inputs, targets in _batches(x, y, batch_size, generator):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return float(F.mse_loss(model(x), y))


def _batches(
    x: Tensor, y: Tensor, batch_size: int | None, generator: torch.Generator | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of one epoch in a new order; a short last batch counts like the others."""
    if batch_size is None or batch_size >= len(x):
        yield x, y
        return
    if generator is None:
        raise UsageError("batches come in a random order: pass the generator to draw it from.")
    order = torch.randperm(len(x), generator=generator).to(x.device)
    for chosen in order.split(batch_size):
        yield x[chosen], y[chosen]
