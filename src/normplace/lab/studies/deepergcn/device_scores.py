"""Scores of several networks on their training, validation and test nodes, computed at once on a device.

They equal those of :meth:`LabelledGraph.score`, which takes one network and one set of nodes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normplace.lab.tasks.graphs.labelled import LabelledGraph

SETS = ("train", "val", "test")


class DeviceScores:
    """The nodes that are scored, for the graph and the number of the split of each network, on a device."""

    def __init__(self, graphs: Sequence[tuple[LabelledGraph, int]], device: torch.device) -> None:
        self.metric = graphs[0][0].metric
        self.labels = torch.stack([graph.y for graph, _ in graphs]).to(device)
        masks = [[getattr(graph, name)[split] for graph, split in graphs] for name in SETS]
        self.masks = torch.stack([torch.stack(row) for row in masks]).to(device)

    def __call__(self, logits: Tensor) -> Tensor:
        """Scores, sets × networks, of logits, networks × nodes × classes."""
        if self.metric == "accuracy":
            correct = logits.argmax(2) == self.labels
            return (correct & self.masks).sum(2).double() / self.masks.sum(2)
        return roc_auc_of_masked(logits[..., 1] - logits[..., 0], self.labels.bool(), self.masks)


def roc_auc_of_masked(scores: Tensor, positive: Tensor, masks: Tensor) -> Tensor:
    """Areas under the ROC curve, sets × networks: the share of pairs that are in order; ties count half.

    Args:
        scores: Networks × nodes.
        positive: Whether each node is of class 1, networks × nodes.
        masks: The nodes of each set, sets × networks × nodes; each has both classes.
    """
    ordered, order = scores.contiguous().sort(dim=1)
    positive = positive.gather(1, order)
    masks = masks.gather(2, order.expand_as(masks))
    zeros = (masks & ~positive).long().cumsum(2)
    zeros = torch.nn.functional.pad(zeros, (1, 0))  # the zeros among the first n nodes
    below, up_to = (
        zeros.gather(2, torch.searchsorted(ordered, ordered, right=right).expand_as(masks)) for right in (False, True)
    )
    ones = masks & positive
    twice = ((below + up_to) * ones).sum(2)
    return twice.double() / (2 * ones.sum(2) * zeros[..., -1])
