"""Optimizers of training objects at another learning rate."""

from __future__ import annotations

import torch

from normplace.errors import UsageError


def peak_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """The learning rate of each parameter group; its peak if a scheduler, which is ignored, has lowered it.

    Raises:
        UsageError: If the optimizer chooses its own learning rate.
    """
    rates = [group.get("max_lr", group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if not all(isinstance(rate, int | float) for rate in rates) or not max(rates) > 0:
        raise UsageError(f"the optimizer {type(optimizer).__name__} has no learning rate: give it a number above 0.")
    return rates


def scaled_to(optimizer: torch.optim.Optimizer, learning_rate: float) -> torch.optim.Optimizer:
    """Multiply the learning rates of all parameter groups so that the largest becomes ``learning_rate``."""
    rates = peak_rates(optimizer)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * learning_rate / max(rates)
    return optimizer
