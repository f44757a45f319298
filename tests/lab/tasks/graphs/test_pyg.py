"""Labelled graphs from PyG's data."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.graphs.pyg import from_pyg


def data(**changes):
    side = torch.tensor([0, 0, 1, 2])
    fields = {
        "x": torch.arange(8.0).reshape(4, 2),
        "y": torch.tensor([[0], [1], [0], [1]]),
        "edge_index": torch.tensor([[0, 1, 2, 3, 3], [1, 0, 0, 3, 2]]),
        **{name: side == part for part, name in enumerate(("train_mask", "val_mask", "test_mask"))},
    }
    return SimpleNamespace(**{**fields, **changes})


def test_edges_go_both_ways_once_and_masks_become_splits():
    graph = from_pyg(data(), "four")
    assert sorted(graph.edge_index.T.tolist()) == [[0, 1], [0, 2], [1, 0], [2, 0], [2, 3], [3, 2]]
    assert graph.y.tolist() == [0, 1, 0, 1]
    assert graph.train.tolist() == [[True, True, False, False]]
    assert graph.num_splits == 1
    several = {name: torch.stack([getattr(data(), name)] * 3, 1) for name in ("train_mask", "val_mask", "test_mask")}
    assert from_pyg(data(**several)).num_splits == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"val_mask": None}, "the data have no val_mask"),
        ({"y": torch.zeros(3)}, "one row for each of the 4 nodes"),
        ({"test_mask": torch.zeros(3, dtype=torch.bool)}, "one row for each of the 4 nodes"),
        ({"test_mask": torch.zeros(4, 2, dtype=torch.bool)}, "same number of splits"),
        ({"edge_index": torch.tensor([[0], [4]])}, "nodes 0 to 3, got 0 to 4"),
    ],
)
def test_invalid_arguments_raise_a_usage_error(changes, reason):
    with pytest.raises(UsageError, match=reason):
        from_pyg(data(**changes))
