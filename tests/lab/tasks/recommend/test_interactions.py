"""Interactions: sorted, checked, and as a graph."""

from __future__ import annotations

import pytest
import torch
from tests.lab.tasks.recommend.recommend_cases import some_interactions

from normplace import UsageError
from normplace.lab.tasks.recommend import Interactions

TRAIN = torch.tensor([[1, 0, 0], [2, 1, 0]])
TEST = torch.tensor([[1], [0]])


def test_pairs_are_sorted_and_the_graph_has_both_directions():
    interactions = Interactions(2, 3, TRAIN, TEST)
    assert interactions.train.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert interactions.num_nodes == 5
    edges = set(map(tuple, interactions.edges.T.tolist()))
    assert edges == {(0, 2), (0, 3), (1, 4), (2, 0), (3, 0), (4, 1)}
    assert torch.equal(interactions.to("cpu").train, interactions.train)


def test_the_order_given_does_not_matter():
    interactions = some_interactions()
    order = torch.randperm(interactions.train.shape[1], generator=torch.Generator().manual_seed(0))
    again = Interactions(
        interactions.num_users, interactions.num_items, interactions.train[:, order].int(), interactions.test
    )
    assert torch.equal(again.train, interactions.train)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_users": 0}, "num_users and num_items must be positive, got 0 and 3"),
        ({"num_users": 1}, "train has user 1, but users are 0 to 0: renumber"),
        ({"num_items": 2}, "train has item 2, but items are 0 to 1"),
        ({"test": torch.tensor([[-1], [0]])}, "test has user -1"),
        ({"train": torch.tensor([[0, 0], [1, 1]])}, "the pair of user 0 and item 1 is in train twice"),
        ({"test": torch.tensor([[1], [2]])}, "the pair of user 1 and item 2 is in train and in test"),
        ({"train": TRAIN.T}, r"users then items, got \(3, 2\)"),
        ({"train": TRAIN.float()}, "must be integers of shape"),
        ({"train": [[0], [0]]}, "got list"),
        ({"train": TRAIN[:, :0]}, "train has no pairs"),
    ],
)
def test_invalid_arguments_raise_a_usage_error(change, sentence):
    with pytest.raises(UsageError, match=sentence):
        Interactions(**{"num_users": 2, "num_items": 3, "train": TRAIN, "test": TEST, **change})
