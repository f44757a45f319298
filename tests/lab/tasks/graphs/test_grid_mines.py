"""The generated grid of mines agrees with its description."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.graphs.grid_mines import grid_edges, grid_mines


def grid(seed=0, **options):
    return grid_mines(torch.Generator().manual_seed(seed), **options)


def test_edges_join_cells_one_step_apart():
    side = 5
    edges = {tuple(edge) for edge in grid_edges(side).T.tolist()}
    cells = [(row, column) for row in range(side) for column in range(side)]
    expected = {
        (a, b)
        for a, (r, c) in enumerate(cells)
        for b, (s, d) in enumerate(cells)
        if a != b and max(abs(r - s), abs(c - d)) == 1
    }
    assert edges == expected
    assert grid_edges(100).shape == (2, 2 * 39_402)  # as many as in the published file


def test_features_count_the_mines_around_a_cell():
    graph = grid(side=20)
    assert int(graph.y.sum()) == 80
    assert int(graph.x[:, 0].sum()) == 200
    assert bool((graph.x.sum(1) == 1).all())
    adjacency = torch.zeros(400, 400)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    mines = (adjacency @ graph.y.float()).long().clamp(max=5)
    known = graph.x[:, 0] == 0
    assert torch.equal(graph.x[known].argmax(1) - 1, mines[known])


def test_splits_share_the_cells():
    graph = grid(side=20, splits=3)
    assert graph.num_splits == 3
    assert [int(part[1].sum()) for part in (graph.train, graph.val, graph.test)] == [200, 100, 100]
    assert bool((graph.train.int() + graph.val.int() + graph.test.int() == 1).all())
    assert not torch.equal(graph.train[0], graph.train[1])
    assert torch.equal(grid(3, side=8).x, grid(3, side=8).x)
    assert not torch.equal(grid(3, side=8).y, grid(4, side=8).y)


def test_invalid_arguments_raise_a_usage_error():
    with pytest.raises(UsageError, match="side must be at least 4"):
        grid(side=3)
    with pytest.raises(UsageError, match="must be between 0 and 1"):
        grid(mines=1.0)
