"""Scores with ties and missing labels."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import average_precision_score

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.ogb.metrics import average_precision, score


def test_average_precision_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    for digits in (1, 6):
        scores = torch.randn(50, generator=generator).round(decimals=digits)
        labels = torch.randint(2, (50,), generator=generator)
        # Sums of float64 in another order.
        assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_missing_labels_and_labels_of_one_class_are_left_out():
    nan = math.nan
    labels = torch.tensor([[1, 0, nan], [0, 0, 1], [nan, 0, 0], [1, 0, nan]])
    outputs = torch.tensor([[0.1, 9, 9], [0.2, 8, 0.3], [5, 7, 0.7], [0.3, 6, 9]])
    assert score("rocauc", outputs, labels) == pytest.approx((0.5 + 0) / 2)
    assert score("ap", outputs, labels) == pytest.approx(((1 + 2 / 3) / 2 + 1 / 2) / 2)


def test_accuracy_leaves_out_rows_without_a_label():
    labels = torch.tensor([[2.0], [0.0], [math.nan]])
    assert score("acc", torch.eye(3)[[2, 1, 0]], labels) == 0.5


@pytest.mark.parametrize(
    ("metric", "outputs", "labels", "words"),
    [
        ("f1", torch.zeros(2, 1), torch.zeros(2, 1), "unknown metric"),
        ("ap", torch.zeros(2, 1), torch.zeros(2, 1), "no label has both classes"),
        ("rocauc", torch.zeros(2, 2), torch.zeros(2, 1), "as many outputs as labels"),
        ("acc", torch.zeros(2, 2), torch.zeros(2, 2), "one label for each row"),
        ("acc", torch.zeros(1, 2), torch.tensor([[math.nan]]), "no row has a label"),
        ("ap", torch.tensor([[math.nan], [0]]), torch.tensor([[1.0], [0]]), "a score is NaN"),
    ],
)
def test_what_has_no_score_is_refused(metric, outputs, labels, words):
    with pytest.raises(UsageError, match=words):
        score(metric, outputs, labels)
