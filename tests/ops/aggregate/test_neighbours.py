"""The CSR form of a graph in both directions, its pieces, and its cache."""

from __future__ import annotations

import pytest
import torch
from tests.ops.aggregate.cases import graph

from normplace.ops import Neighbours, softmax_aggregate
from normplace.ops.aggregate import neighbours
from normplace.ops.aggregate.neighbours import CSRGraph, as_neighbours


@pytest.mark.parametrize("piece", [1, 4, 256])
def test_rows_and_pieces(piece):
    edges = graph(9, 17)
    built = Neighbours(edges, 9, 17, piece=piece)
    assert built.tensors[0].dtype == torch.int32
    csr, (src, dst) = CSRGraph.of(built.tensors), edges
    for direction, near, far in ((csr.arriving, dst, src), (csr.leaving, src, dst)):
        rows = len(direction.indptr) - 1
        for row in range(rows):
            span = slice(direction.indptr[row], direction.indptr[row + 1])
            assert sorted(direction.edges[span].tolist()) == (near == row).nonzero()[:, 0].tolist()
            assert direction.indices[span].tolist() == far[direction.edges[span].long()].tolist()
        covered, slots = [], []
        for row, start, stop, slot in direction.pieces.T.tolist():
            if row >= 0:
                assert stop - start <= piece
                assert direction.indptr[row] <= start <= stop <= direction.indptr[row + 1]
                assert (slot >= 0) == (direction.indptr[row + 1] - direction.indptr[row] > piece)
                covered += range(start, stop)
                slots += [slot] if slot >= 0 else []
        assert sorted(covered) == list(range(70))
        assert set(direction.pieces[0].tolist()) - {-1} == set(range(rows))
        lengths = direction.pieces[2] - direction.pieces[1]
        assert bool((lengths.diff() <= 0).all())
        # The slots of a hub follow each other in the order of its edges, as the merge expects.
        named = []
        for row, first, count in direction.hubs.T.tolist():
            if row >= 0:
                own = {slot: start for r, start, _, slot in direction.pieces.T.tolist() if r == row}
                expected = [int(direction.indptr[row]) + n * piece for n in range(count)]
                assert [own[first + n] for n in range(count)] == expected
                named += range(first, first + count)
        assert sorted(named) == sorted(slots)
        assert len(slots) <= 2 * 70 // piece


def test_an_unchanged_edge_index_is_built_once(monkeypatch):
    edges, x = graph(), torch.randn(13, 4)
    first = as_neighbours(edges, 13, None)
    assert as_neighbours(edges, 13, None) is first
    assert as_neighbours(edges, 14, None) is not first
    before = softmax_aggregate(x, edges)
    edges[:, 0] = torch.tensor([0, 7])
    after = softmax_aggregate(x, edges)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, softmax_aggregate(x, edges.clone()))
    kept = len(neighbours._cache)
    del edges, first
    assert len(neighbours._cache) < kept


def test_an_empty_graph():
    empty = Neighbours(torch.empty(2, 0, dtype=torch.long), 0)
    assert softmax_aggregate(torch.empty(0, 3), empty).shape == (0, 3)
    assert repr(empty) == "Neighbours(0 edges, 0 sources, 0 targets, cpu)"
    assert empty.to("cpu").degree.tolist() == []
