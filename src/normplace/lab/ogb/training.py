"""What node and graph tasks share: the loss, scores, and where the data are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask
from normplace.lab.tasks.graphs.ogb.metrics import score

SHARE = 1 / 3
"""Largest share of the free memory of a GPU that the data may take."""
IGNORED = -100


class Training(Protocol):
    """The epochs and evaluations of one seed."""

    def epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """Train for one epoch, and return the mean loss of its steps."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The scores in evaluation mode, by the side of the split; none if an output is not finite."""
        ...


def task_loss(task: OgbTask, logits: Tensor, y: Tensor) -> Tensor:
    """The mean loss over known labels: cross-entropy of classes, or of each label separately."""
    known = y == y
    if task.is_multiclass:
        return F.cross_entropy(logits, torch.where(known, y, IGNORED)[:, 0].long(), ignore_index=IGNORED)
    losses = F.binary_cross_entropy_with_logits(logits, torch.where(known, y, 0.0), reduction="none")
    return (losses * known).sum() / known.sum().clamp(min=1)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """Update the weights, and return the loss without its graph."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def mean_loss(losses: Sequence[Tensor]) -> float:
    """The mean loss of the steps of an epoch.

    Raises:
        UsageError: If there was no step.
    """
    if not losses:
        raise UsageError("no batch has two graphs or a node to learn from: use larger batches or fewer clusters.")
    return float(torch.stack(list(losses)).mean())


def split_scores(task: OgbTask, outputs: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> dict[str, float]:
    """The score of each side of the split; none if an output is not finite."""
    if not all(bool(side.isfinite().all()) for side in outputs.values()):
        return {}
    return {name: score(task.metric, side, y[name]) for name, side in outputs.items()}


def fits(num_bytes: int, device: torch.device) -> bool:
    """Whether data of this size can be kept on the device together with a network."""
    if device.type == "cpu":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes < SHARE * free
