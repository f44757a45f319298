"""Training of a regression network with early stopping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from normplace.models.regression.rows import WeightedRows


@dataclass(frozen=True)
class TrainingPlan:
    """How a network is trained.

    Attributes:
        learning_rate: Learning rate of Adam.
        weight_decay: Decoupled weight decay.
        batch_size: Rows per step.
        max_iter: Most epochs.
        patience: Epochs without improvement after which training stops.
        tol: Smallest relative improvement that counts.
    """

    learning_rate: float
    weight_decay: float
    batch_size: int
    max_iter: int
    patience: int
    tol: float


@dataclass(frozen=True)
class TrainingCurve:
    """Mean squared errors of each epoch, in standard deviations of the targets squared.

    Attributes:
        fitted: Over the rows that are fitted, during the epoch.
        held_out: Over those that decide when to stop, after the epoch; empty if there are none.
    """

    fitted: list[float]
    held_out: list[float]


def train(
    network: nn.Module,
    rows: WeightedRows,
    held_out: WeightedRows | None,
    plan: TrainingPlan,
    random: np.random.RandomState,
) -> TrainingCurve:
    """Fit a network to standardized rows by Adam, and restore the weights of its best epoch.

    Args:
        network: The network in standardized units.
        rows: The rows to fit.
        held_out: The rows that decide the best epoch; None uses the error on the fitted rows.
        plan: How to train.
        random: Generator of the order of the rows.
    """
    x, y, weight = (torch.from_numpy(part) for part in (rows.x, rows.y, rows.weight))
    optimizer = torch.optim.AdamW(network.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    curve = TrainingCurve([], [])
    best, best_epoch, best_state = float("inf"), 0, _copied(network)
    for epoch in range(1, plan.max_iter + 1):
        total = 0.0
        for index in _batches(len(rows), plan.batch_size, random):
            optimizer.zero_grad()
            loss = _weighted_error(network(x[index]), y[index], weight[index]) / len(index)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
        curve.fitted.append(total / len(rows))
        if held_out is not None:
            curve.held_out.append(_error(network, held_out))
        error = (curve.held_out or curve.fitted)[-1]
        if error < best * (1 - plan.tol):
            best, best_epoch, best_state = error, epoch, _copied(network)
        elif not epoch - best_epoch < plan.patience:
            break
    network.load_state_dict(best_state)
    return curve


def _weighted_error(output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Sum over rows of the mean squared error over targets."""
    return ((output - target).square().mean(1) * weight).sum()


@torch.no_grad()
def _error(network: nn.Module, rows: WeightedRows) -> float:
    x, y, weight = (torch.from_numpy(part) for part in (rows.x, rows.y, rows.weight))
    return float(_weighted_error(network(x), y, weight) / weight.sum())


def _batches(count: int, size: int, random: np.random.RandomState) -> Iterator[Tensor]:
    """Row numbers of each step of an epoch; without a rest that is smaller than half a batch."""
    if count <= size:
        yield torch.arange(count)
        return
    order = torch.from_numpy(random.permutation(count))
    yield from torch.tensor_split(order, max(1, round(count / size)))


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}
