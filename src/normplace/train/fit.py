"""Fit a regression on data that is held in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def fit(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, learning_rate: float) -> float:
    """Minimise the mean squared error with Adam, the whole data in each step.

    Args:
        model: Changed in place.
        x: Inputs.
        y: Targets, in the shape of the model's outputs.
        epochs: How many steps.
        learning_rate: Adam's.

    Returns:
        The error after the last step.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return float(F.mse_loss(model(x), y))
