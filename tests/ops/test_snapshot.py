"""Every change of a tensor that PyTorch does not see is detected."""

from __future__ import annotations

import pytest
import torch
from tests.ops.aggregate.cases import graph

from normplace.models.memory import FactorMemory
from normplace.ops import softmax_aggregate
from normplace.ops.snapshot import ROW, Snapshot, _hash_tensor, fingerprint
from normplace.placement.scale import Scale


def through_data(edges):
    edges.data[1, 0] = 5


def through_new_data(edges):
    edges.data = edges.flip(1)


def through_numpy(edges):
    edges.numpy()[0, 3] = 7


def by_swapping_two_edges(edges):
    values = edges.numpy()
    values[:, [0, -1]] = values[:, [-1, 0]]


@pytest.mark.parametrize("change", [through_data, through_new_data, through_numpy, by_swapping_two_edges])
def test_a_graph_changed_silently_is_rebuilt(change):
    edges, x = graph(), torch.randn(13, 4, generator=torch.Generator().manual_seed(0))
    terms = torch.arange(70.0)[:, None].expand(70, 4).contiguous()
    before = softmax_aggregate(x, edges, 0.0, terms)
    memory, scale = FactorMemory(), Scale("degree", power=-1)
    memory.factor(scale, edges, 13, None, torch.float32)
    change(edges)
    after = softmax_aggregate(x, edges, 0.0, terms)
    assert not torch.equal(before, after)
    assert torch.equal(after, softmax_aggregate(x, edges.clone(), 0.0, terms))
    fresh = FactorMemory().factor(scale, edges.clone(), 13, None, torch.float32)
    assert torch.equal(memory.factor(scale, edges, 13, None, torch.float32), fresh)


@pytest.mark.parametrize("size", [0, 1, ROW - 1, ROW, 3 * ROW + 17])
def test_any_single_change_changes_the_hash(size):
    values = torch.randint(-1000, 1000, (size,), generator=torch.Generator().manual_seed(size))
    hashes = {fingerprint(values)}
    for place in range(0, size, max(1, size // 20)):
        changed = values.clone()
        changed[place] += 1
        hashes.add(fingerprint(changed))
    assert len(hashes) == 1 + len(range(0, size, max(1, size // 20)))


def test_the_hash_does_not_depend_on_layout_or_width():
    edges = graph()
    assert fingerprint(edges) == fingerprint(edges.T.contiguous().T) == fingerprint(edges.int())


@pytest.mark.parametrize("size", [1, ROW, 2 * ROW + 5])
def test_the_hash_is_the_same_on_every_device(size):
    values = torch.randint(-99, 99, (size,), generator=torch.Generator().manual_seed(0))
    assert fingerprint(values) == int(_hash_tensor(values))


def test_a_snapshot_matches_only_its_unchanged_tensor():
    edges = graph()
    taken = Snapshot.of(edges)
    assert taken.matches(edges)
    assert not taken.matches(edges.clone())
    edges[0, 0] += 1
    assert not taken.matches(edges)
