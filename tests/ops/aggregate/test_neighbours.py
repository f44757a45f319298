"""The CSR form of a graph in both directions, its pieces, and its cache."""

from __future__ import annotations

import pytest
import torch
from tests.ops.aggregate.cases import graph

from normplace import UsageError
from normplace.ops import Neighbours, snapshot, softmax_aggregate
from normplace.ops.aggregate import adjacency, neighbours
from normplace.ops.aggregate.adjacency import as_neighbours, shared_graph
from normplace.ops.aggregate.neighbours import CSRGraph


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
    kept = len(adjacency._cache)
    del edges, first
    assert len(adjacency._cache) < kept


def test_an_empty_graph():
    empty = Neighbours(torch.empty(2, 0, dtype=torch.long), 0)
    assert softmax_aggregate(torch.empty(0, 3), empty).shape == (0, 3)
    assert repr(empty) == "Neighbours(0 edges, 0 sources, 0 targets, cpu)"
    assert empty.to("cpu").degree.tolist() == []


def same_graph(first, second):
    """Whether two graphs have the same rows in both directions, in any order within a row."""
    assert (first.num_src, first.num_dst, first.num_edges) == (second.num_src, second.num_dst, second.num_edges)
    for one, other in zip(CSRGraph.of(first.tensors), CSRGraph.of(second.tensors), strict=True):
        assert one.indptr.tolist() == other.indptr.tolist()
        for row in range(one.num_rows):
            span = slice(int(one.indptr[row]), int(one.indptr[row + 1]))
            pairs = [
                sorted(zip(way.indices[span].tolist(), way.edges[span].tolist(), strict=True)) for way in (one, other)
            ]
            assert pairs[0] == pairs[1]
        # Every edge is in one piece, and every piece has a row.
        used = one.pieces[:, one.pieces[0] >= 0]
        assert sum((used[2] - used[1]).tolist()) == first.num_edges


@pytest.mark.parametrize("piece", [3, 256])
def test_sorted_edges_and_groups_are_graphs(piece):
    edges = graph(9, 17)
    edges = edges[:, edges[1].argsort(stable=True)]
    indptr = torch.nn.functional.pad(torch.bincount(edges[1], minlength=17).cumsum(0), (1, 0))
    expected = Neighbours(edges, 9, 17, piece=piece)
    same_graph(Neighbours.from_csr(indptr, edges[0], 9, piece=piece), expected)
    same_graph(expected.reversed(), Neighbours(edges.flip(0), 17, 9, piece=piece))
    assert torch.equal(expected.edge_index, edges)
    assert torch.equal(Neighbours(graph(), 13).reversed().edge_index, graph().flip(0))
    rows = torch.stack([torch.arange(70), edges[1]])
    same_graph(Neighbours.of_groups(None, indptr, piece=piece), Neighbours(rows, 70, 17, piece=piece))
    mixed = graph(9, 17)[1]
    groups = Neighbours.of_groups(mixed, num_dst=17, piece=piece)
    same_graph(groups, Neighbours(torch.stack([torch.arange(70), mixed]), 70, 17, piece=piece))
    direct, built = (CSRGraph.of(one.tensors).leaving for one in (groups, Neighbours(rows, 70, 17, piece=piece)))
    assert direct.pieces.shape == built.pieces.shape
    assert direct.hubs.shape == built.hubs.shape


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_an_unchanged_matrix_is_built_once():
    matrix = torch.eye(4).to_sparse_csr()
    first = as_neighbours(matrix, 4, 4)
    assert as_neighbours(matrix, 4, None) is first
    matrix.col_indices()[0] = 2
    assert as_neighbours(matrix, 4, 4).edge_index.tolist() == [[2, 1, 2, 3], [0, 1, 2, 3]]
    kept = len(adjacency._matrices)
    del matrix, first
    assert len(adjacency._matrices) < kept
    with pytest.raises(UsageError, match="4 targets × 4 sources, but x has 5 rows"):
        as_neighbours(torch.eye(4).to_sparse(), 5, None)


@pytest.mark.parametrize(
    ("indptr", "words"), [([0, 2, 1, 3], "must increase"), ([1, 3], "must increase"), ([[0, 3]], "vector of integers")]
)
def test_row_pointers_are_checked(indptr, words):
    with pytest.raises(UsageError, match=words):
        Neighbours.from_csr(torch.tensor(indptr), torch.zeros(3, dtype=torch.long), 1)


@pytest.mark.parametrize("piece", [1, 4, 256])
@pytest.mark.parametrize("num_edges", [0, 1, 70, 900])
def test_numpy_and_pytorch_build_the_same_tensors(monkeypatch, piece, num_edges):
    edges = graph(9, 17, num_edges)
    by_numpy = Neighbours(edges, 9, 17, piece).tensors
    monkeypatch.setattr(neighbours, "NUMPY_EDGES", -1)
    by_pytorch = Neighbours(edges, 9, 17, piece).tensors
    for built, expected in zip(by_numpy, by_pytorch, strict=True):
        assert built.dtype == expected.dtype
        assert built.is_contiguous()  # the GPU kernels read memory in order
        assert torch.equal(built, expected)


def count_hashes(monkeypatch) -> list[torch.Tensor]:
    """The tensors that are hashed from now on."""
    hashed, hash_values = [], snapshot.fingerprint
    monkeypatch.setattr(snapshot, "fingerprint", lambda tensor: (hashed.append(tensor), hash_values(tensor))[1])
    return hashed


def test_layers_that_share_a_graph_hash_it_once(monkeypatch):
    edges = graph()
    hashed = count_hashes(monkeypatch)
    with shared_graph():
        first = as_neighbours(edges, 13, 13)
        assert as_neighbours(edges, 13, 13) is first
        assert as_neighbours(edges, 13, None) is first
    assert len(hashed) == 1
    assert as_neighbours(edges, 13, 13) is first
    assert len(hashed) == 2


def test_a_shared_graph_that_is_changed_in_place_is_rebuilt():
    edges = graph()
    with shared_graph():
        before = as_neighbours(edges, 13, 13)
        edges[1, 0] = 5
        after = as_neighbours(edges, 13, 13)
        assert after is not before
        assert torch.equal(after.edge_index, edges)


def test_a_change_between_two_contexts_is_detected_without_a_new_version():
    edges = graph()
    with shared_graph():
        as_neighbours(edges, 13, 13)
    edges.numpy()[1, 0] = 5
    with shared_graph():
        assert torch.equal(as_neighbours(edges, 13, 13).edge_index, edges)


def test_the_sizes_of_a_shared_graph_are_compared():
    edges = graph()
    with shared_graph():
        as_neighbours(edges, 13, 13)
        assert as_neighbours(edges, 14, 15).num_dst == 15
        with pytest.raises(UsageError, match="must be from 0 to 4"):
            as_neighbours(edges, 5, 5)


def test_layers_that_share_an_inference_graph_build_it_once():
    with torch.inference_mode():
        edges = graph().clone()
        with shared_graph():
            first = as_neighbours(edges, 13, 13)
            assert as_neighbours(edges, 13, 13) is first
        assert as_neighbours(edges, 13, 13) is not first


def test_contexts_can_be_nested_and_end_with_an_error():
    edges = graph()
    with shared_graph():
        first = as_neighbours(edges, 13, 13)
        with pytest.raises(UsageError), shared_graph():
            as_neighbours(edges, 5, 5)
        assert as_neighbours(edges, 13, 13) is first
