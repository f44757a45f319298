"""Fit a regression to data in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, expect_range


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
    """Minimise the mean squared error with Adam in training mode; the model ends in evaluation mode.

    Args:
        model: Trained in place; on the device of the data.
        x: Inputs, one sample per row.
        y: Targets, in the shape of the model's outputs.
        epochs: Passes over the data.
        learning_rate: Learning rate of Adam.
        batch_size: Samples per step; None, or more than there are, for all.
        generator: Random generator for the order of each epoch, on the CPU so that the order is the same on every
            device; required if an epoch has several steps.

    Returns:
        The error over all samples after the last step.

    Raises:
        UsageError: If the batch size is below 1, or a generator is required and absent.
    """
    if batch_size is not None:
        expect_range("batch_size", batch_size, least=1)
    # Fused: in these small networks, one kernel per parameter would dominate the time of a step.
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
    """Yield the batches of one epoch in a random order; the last may be smaller."""
    if batch_size is None or batch_size >= len(x):
        yield x, y
        return
    if generator is None:
        raise UsageError("batches are drawn in random order: pass a generator.")
    order = torch.randperm(len(x), generator=generator).to(x.device)
    for samples in order.split(batch_size):
        yield x[samples], y[samples]
