"""OGB's metrics: the mean over labels of accuracy, ROC-AUC or average precision; missing labels are NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown
from normplace.lab.tasks.graphs.labelled import roc_auc

RANKED = ("rocauc", "ap")


def score(metric: str, outputs: Tensor, labels: Tensor) -> float:
    """The score of outputs, as OGB's evaluators compute it.

    Args:
        metric: ``acc``: one logit for each class of the one label; ``rocauc`` or ``ap``: one score for each label.
        outputs: One row for each node or graph.
        labels: One row for each node or graph, one column for each label; NaN where the label is unknown.

    Raises:
        UsageError: If the metric is unknown, shapes differ, an output is NaN, or no label has both classes.
    """
    if metric == "acc":
        if outputs.dim() != 2 or labels.shape != (len(outputs), 1):
            raise UsageError(f"accuracy needs one label for each row, got {tuple(labels.shape)} labels.")
        known = labels[:, 0] == labels[:, 0]
        if not bool(known.any()):
            raise UsageError("no row has a label, so there is no accuracy.")
        return float((outputs.argmax(1) == labels[:, 0])[known].double().mean())
    if metric not in RANKED:
        raise unknown("metric", metric, ("acc", *RANKED))
    if outputs.shape != labels.shape or labels.dim() != 2:
        raise UsageError(
            f"{metric} needs as many outputs as labels, got {tuple(outputs.shape)}, {tuple(labels.shape)}."
        )
    of_one_label = roc_auc if metric == "rocauc" else average_precision
    scores = []
    for output, label in zip(outputs.unbind(1), labels.unbind(1), strict=True):
        if bool((label == 1).any()) and bool((label == 0).any()):  # otherwise OGB leaves the label out
            known = label == label
            scores.append(of_one_label(output[known], label[known].long()))
    if not scores:
        raise UsageError(f"no label has both classes, so there is no {metric}.")
    return sum(scores) / len(scores)


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """The mean of the precision over the ranks of class 1; samples with equal scores have one rank.

    Raises:
        UsageError: If a score is NaN, or class 1 is missing.

    Examples:
        >>> average_precision(torch.tensor([0.9, 0.8, 0.3]), torch.tensor([1, 0, 1]))
        0.8333333333333333
    """
    if bool(scores.isnan().any()):
        raise UsageError("a score is NaN, so the scores have no order: check whether training diverged.")
    positive = labels.bool()
    if not bool(positive.any()):
        raise UsageError("average precision needs class 1, but no label is 1.")
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    hits = torch.zeros(len(counts), dtype=torch.float64, device=scores.device)
    hits.index_add_(0, group, positive.to(hits.dtype))
    hits, counts = hits.flip(0), counts.flip(0)  # the highest score first
    precision = hits.cumsum(0) / counts.cumsum(0)
    return float((precision * hits).sum() / hits.sum())
