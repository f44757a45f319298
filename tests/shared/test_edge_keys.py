"""Keys of edges, compared with np.unique, with many blocks and repeats across their boundaries."""

from __future__ import annotations

import numpy as np
import pytest

from normplace._shared import edge_keys
from normplace._shared.edge_keys import rows_of_keys, sorted_keys, split_keys


@pytest.fixture(params=[1, 3, 1 << 16])
def block(request, monkeypatch):
    monkeypatch.setattr(edge_keys, "BLOCK", request.param)


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize(("nodes", "edges"), [(1, 4), (3, 40), (50, 200), (50, 0)])
def test_keys_are_sorted_and_distinct(block, nodes, edges, undirected):
    source, target = np.random.default_rng(0).integers(nodes, size=(2, edges))
    before = source.copy(), target.copy()
    keys = sorted_keys(source, target, nodes, undirected)
    pairs = np.stack([source, target])[:, source != target]
    pairs = np.concatenate([pairs, pairs[::-1]], 1) if undirected else pairs
    expected = np.unique(pairs, axis=1)
    assert np.array_equal(keys, expected[0] * nodes + expected[1])
    assert np.array_equal(split_keys(keys, nodes), expected)
    start, targets = rows_of_keys(keys, nodes)
    assert np.array_equal(np.diff(start), np.bincount(expected[0], minlength=nodes))
    assert start[0] == 0 and targets.dtype == np.int32 and np.array_equal(targets, expected[1])
    assert np.array_equal(source, before[0]) and np.array_equal(target, before[1])
