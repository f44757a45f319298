"""The graph of a call is found by the documented rules; anything ambiguous is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from normplace import UsageError
from normplace.edit.insert.graph_finder import GraphFinder

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
PAIRS = EDGES.flip(0)
X, BATCH = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 0, 1, 1])


class Net(nn.Module):
    """Never run; only its parameter names matter."""

    def forward(self, x, edge_index, edge_attr=None, batch=None):
        return x


class Renamed(nn.Module):
    def forward(self, edge_attr, links, features, membership=None):
        return features


class OneObject(nn.Module):
    def forward(self, batch):
        return batch.x


class Unnamed(nn.Module):
    def forward(self, *args):
        return args[0]


def find(net, *args, names=("", ""), **kwargs):
    graph = GraphFinder.of(net, *names).find(args, kwargs)
    return graph.edge_index, graph.num_nodes, graph.batch


WEIGHTS = torch.ones(3, 2)
DATA = SimpleNamespace(x=X, edge_index=EDGES, batch=BATCH, pairs=PAIRS)
BARE = SimpleNamespace(edge_index=EDGES, num_nodes=6)

CASES = {
    "by name": (lambda: find(Net(), X, EDGES), (EDGES, 5, None)),
    "by keyword": (lambda: find(Net(), edge_index=EDGES, x=X, batch=BATCH), (EDGES, 5, BATCH)),
    "the name has priority over the shape": (lambda: find(Net(), PAIRS, EDGES), (EDGES, 2, None)),
    "in an object": (lambda: find(OneObject(), DATA), (EDGES, 5, BATCH)),
    "in an object without features": (lambda: find(OneObject(), BARE), (EDGES, 6, None)),
    "by the user's name": (lambda: find(Net(), X, EDGES, links=PAIRS, names=("links", "")), (PAIRS, 5, None)),
    "by the user's name, in an object": (
        lambda: find(OneObject(), DATA, names=("batch.pairs", "")),
        (PAIRS, 5, BATCH),
    ),
    "by its shape": (lambda: find(Renamed(), WEIGHTS, EDGES, X), (EDGES, 5, None)),
    "a batch by the user's name": (
        lambda: find(Renamed(), None, EDGES, X, BATCH, names=("", "membership")),
        (EDGES, 5, BATCH),
    ),
    "without names": (lambda: find(Unnamed(), X, EDGES), (EDGES, 5, None)),
    "nodes from the batch alone": (lambda: find(Net(), None, EDGES, None, BATCH), (EDGES, 5, BATCH)),
    "nodes from nothing": (lambda: find(Unnamed(), EDGES), (EDGES, None, None)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_graph_is_found(case):
    call, (expected_edges, expected_nodes, expected_batch) = CASES[case]
    edges, nodes, batch = call()
    assert edges is expected_edges
    assert nodes == expected_nodes
    assert batch is expected_batch


MISTAKES = [
    (lambda: find(Unnamed(), X, EDGES, PAIRS), r"several arguments could be the edges \(argument 2, argument 3\)"),
    (lambda: find(Renamed(), None, DATA, BARE), r"could be the edges \(links, features\)"),
    (lambda: find(Net(), X, None), "no argument holds the edges: the model was called with x, edge_index"),
    (lambda: find(Unnamed()), "called with nothing"),
    (lambda: find(Unnamed(), EDGES.double()), 'name the one that does with edges="..."'),
    (
        lambda: find(Net(), X, EDGES, names=("link", "")),
        "edges='link' does not match an argument",
    ),
    (lambda: find(Net(), X, EDGES, names=("", "member")), "batch='member' does not match"),
    (lambda: find(OneObject(), DATA, names=("batch.links", "")), "edges='batch.links' does not match"),
    (lambda: find(Net(), X, torch.eye(5).to_sparse()), "not a dense 2 × E tensor"),
    (lambda: find(Net(), X, [[0], [1]]), "the edges are a list"),
    (lambda: find(Net(), X, EDGES, names=("", BATCH)), "batch is the name of an argument, not a Tensor"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_missing_or_ambiguous_graphs_are_refused(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()
