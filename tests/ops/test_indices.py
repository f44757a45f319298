"""Indices out of range raise an error in every use, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.ops.aggregate.cases import graph
from tests.ops.kernels import needs_gpu

from normplace import UsageError
from normplace.models import GENConv, centrality
from normplace.models.graph_parts import SumOfEmbeddings, pool
from normplace.models.topology import TOPOLOGIES, topology
from normplace.norms import GraphNorm, PairNorm
from normplace.ops import TableEdge, softmax_aggregate

X, EDGES = torch.ones(13, 4), graph()
BAD = (-1, 5, 100_000_000)


def with_one(values, bad):
    changed = values.clone()
    changed.view(-1)[3] = bad
    return changed


USES = {
    "sources": (lambda i: softmax_aggregate(X, torch.stack([i, EDGES[1]])), EDGES[0], 13),
    "targets": (lambda i: softmax_aggregate(X, torch.stack([EDGES[0], i])), EDGES[1], 13),
    "types": (lambda i: softmax_aggregate(X, EDGES, 1.0, TableEdge(i, torch.ones(5, 4))), EDGES[0] % 5, 5),
    "many types": (lambda i: softmax_aggregate(X, EDGES, 1.0, TableEdge(i, torch.ones(600, 4))), EDGES[0], 600),
    "readout": (lambda i: pool(X, i, "mean", 5), torch.arange(13) % 5, 5),
    "largest readout": (lambda i: pool(X, i, "max", 5), torch.arange(13) % 5, 5),
    "graph norm": (lambda i: GraphNorm(4)(X, i, 5), torch.arange(13) % 5, 5),
    "pair norm": (lambda i: PairNorm(4)(X, i, 5), torch.arange(13) % 5, 5),
    "categories": (lambda i: SumOfEmbeddings((5, 5), 4)(i[:, None].expand(-1, 2)), torch.arange(13) % 5, 5),
}


@pytest.mark.parametrize("use", USES)
def test_indices_out_of_range_raise(use):
    run, good, bound = USES[use]
    run(good)
    for bad in (-1, bound, 100_000_000):
        with pytest.raises(UsageError, match="must be from 0 to"):
            run(with_one(good, bad))


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_categories_are_checked_once_per_tensor_on_a_gpu():
    rows, categories = SumOfEmbeddings((5, 5), 4).cuda(), torch.randint(5, (13, 2)).cuda()
    expected = rows(categories)
    try:
        torch.cuda.set_sync_debug_mode("error")
        again = rows(categories)
        with pytest.raises(RuntimeError, match="synchroniz"):
            rows(categories.clone())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, expected)
    with pytest.raises(UsageError, match="feature 1 must be from 0 to 4"):
        categories[0, 1] = 5
        rows(categories)


@pytest.mark.parametrize("use", USES)
def test_indices_out_of_range_raise_when_compiled(use):
    run, good, bound = USES[use]
    compiled = torch.compile(run, backend="aot_eager")
    compiled(good)
    for bad in (-1, bound, 100_000_000):
        with pytest.raises(UsageError, match="must be from 0 to"):
            compiled(with_one(good, bad))


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_edge_types_changed_between_forward_and_backward_raise(backend):
    if backend == "numba":
        pytest.importorskip("numba")
    types, x = EDGES[0] % 5, X.clone().requires_grad_()
    y = softmax_aggregate(x, EDGES, 1.0, TableEdge(types, torch.ones(5, 4)), backend=backend)
    types.numpy()[0] = 100_000_000
    with pytest.raises(UsageError, match="edge types must be from 0 to 4"):
        y.sum().backward()


def test_a_compiled_convolution_raises_for_unknown_edge_types():
    conv = GENConv(8, 8, edge_types=5, norm="layer")
    compiled = torch.compile(conv, backend="aot_eager")
    x, types = torch.ones(13, 8, requires_grad=True), EDGES[0] % 5
    compiled(x, EDGES, types).sum().backward()
    for bad in BAD:
        with pytest.raises(UsageError, match="edge types must be from 0 to 4"):
            compiled(x, EDGES, with_one(types, bad))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topology_raises_for_nodes_out_of_range(name):
    for edges in (EDGES - 1, EDGES + 1, EDGES * 100_000_000, EDGES.bool(), EDGES.to(torch.complex64), EDGES[0]):
        with pytest.raises(UsageError):
            topology(name, edges, 13)
    with pytest.raises(UsageError):
        topology(name, EDGES, -3)


def test_centrality_raises_for_nodes_out_of_range():
    for edges in (EDGES - 1, EDGES + 1, EDGES * 100_000_000):
        with pytest.raises(UsageError, match="must be from 0 to 12"):
            centrality.simple_edges(edges, 13, undirected=True)
        with pytest.raises(UsageError, match="must be from 0 to 12"):
            centrality.betweenness(edges, 13, torch.arange(13))


def test_neighbour_lists_are_checked():
    pytest.importorskip("numba")
    from normplace.lab.tasks.selection import Graph, core_numbers

    assert core_numbers(Graph(np.array([0, 1, 2]), np.array([1, 0]))).tolist() == [1, 1]
    for indptr, indices in (
        ([0, 1, 2], [1, 10**9]),
        ([0, 1, 2], [1, -1]),
        ([0, 10**9, 2], [1, 0]),
        ([0, 5], [0]),
        ([1, 2], [0, 0]),
        ([0, 1, 1], [1]),  # one direction alone
        ([0, 1], [0]),  # a self-loop
        ([0, 2, 4], [1, 1, 0, 0]),  # twice
        ([0], []),
        ([[0, 0]], []),
        ([0.0, 0.0], []),
    ):
        with pytest.raises(UsageError):
            Graph(np.array(indptr), np.array(indices))


def test_a_graph_does_not_share_its_arrays():
    pytest.importorskip("numba")
    from normplace.lab.tasks.selection import Graph

    indices = np.array([1, 0], np.int32)
    made = Graph(np.array([0, 1, 2]), indices)
    indices[0] = 10**9
    assert made.indices.tolist() == [1, 0]


def test_orders_are_checked():
    pytest.importorskip("numba")
    from normplace.lab.tasks.selection import Graph
    from normplace.lab.tasks.selection.rewards import REWARDS

    path = Graph.from_edges([[0, 1], [1, 2]])
    for reward in REWARDS.values():
        for order in ([0, 1, 10**9], [0, 1, -1], [0, 1], [0, 0, 1], [0.0, 1.0, 2.0]):
            with pytest.raises(UsageError):
                reward.rewards(path, np.array([order]))
