"""The memory of factors: computed once per graph, never those of a graph that has changed."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from normplace import Scale
from normplace.models import GraphStack, memory, topology
from normplace.models.memory import FactorMemory

SCALE = Scale("degree", power=-1)


class SumConv(nn.Linear):
    def forward(self, x, edge_index):
        return super().forward(x.index_add(0, edge_index[1], x[edge_index[0]]))


@pytest.fixture
def computed(monkeypatch):
    """The names of the scalars that were computed, in order."""
    names = []
    monkeypatch.setattr(memory, "topology", lambda name, *rest: names.append(name) or topology(name, *rest))
    return names


def edges():
    return torch.tensor([[0, 1, 2, 0], [1, 0, 1, 2]])


def factor(kept, edge_index, scale=SCALE, nodes=4, batch=None, dtype=torch.float32):
    actual = kept.factor(scale, edge_index, nodes, batch, dtype)
    values = topology(scale.source, edge_index, nodes, batch)
    expected = scale.factor(values.to(torch.promote_types(dtype, torch.float32))).to(dtype)
    assert torch.equal(actual, expected) and actual.dtype == dtype
    return actual


def test_a_graph_is_computed_once(computed):
    kept, graph = FactorMemory(), edges()
    for _ in range(3):
        factor(kept, graph)
    assert computed == ["degree"]
    factor(kept, graph.clone())
    assert len(computed) == 2  # an equal graph is another one


def test_a_change_in_place_is_seen(computed):
    kept, graph = FactorMemory(), edges()
    before = factor(kept, graph)
    graph[:, 3] = torch.tensor([3, 0])
    assert not torch.equal(factor(kept, graph), before)
    graph.resize_(2, 3)
    factor(kept, graph)
    graph.data = torch.tensor([[3, 3], [0, 1]])
    factor(kept, graph)
    assert len(computed) == 4


def test_nodes_batch_scale_and_dtype_are_told_apart(computed):
    kept, graph, batch = FactorMemory(), edges(), torch.tensor([0, 0, 0, 1])
    rank = Scale("pagerank")
    for _ in range(2):
        factor(kept, graph, rank)
        factor(kept, graph, rank, nodes=5)
        factor(kept, graph, rank, batch=batch)
        factor(kept, graph, Scale("pagerank", power=2))
        factor(kept, graph, rank, dtype=torch.float64)
        factor(kept, graph, rank, dtype=torch.bfloat16)  # rounded from what float32 has
    assert len(computed) == 5
    batch[3] = 0
    factor(kept, graph, rank, batch=batch)
    assert len(computed) == 6


def test_a_graph_is_not_kept_alive_and_only_a_few_are_kept(computed):
    kept = FactorMemory(size=2)
    graphs = [edges() for _ in range(3)]
    for graph in graphs:
        factor(kept, graph)
    factor(kept, graphs[2]), factor(kept, graphs[1])
    assert len(computed) == 3
    factor(kept, graphs[0])
    assert len(computed) == 4
    del graphs, graph
    gc.collect()
    factor(kept, edges())
    assert len(kept._entries) == 1


def test_inference_mode_spoils_no_training(computed):
    net = GraphStack(SumConv, 3, 8, 2, 2, placement="post", scale=SCALE, gate="learned")
    graph, x = edges(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = net(x, graph).clone()
        made_there = graph.clone()
        assert torch.equal(net(x, made_there), expected)
        made_there[:, 3] = torch.tensor([3, 0])
        assert not torch.equal(net(x, made_there), expected)
    loss = net(x, graph)
    assert torch.equal(loss, expected)
    loss.sum().backward()
    assert computed == ["degree"] * 3  # once for the graph, twice for tensors without a version


def test_a_stack_computes_once_and_its_copies_anew(computed):
    net = GraphStack(SumConv, 3, 8, 2, 3, placement="post", scale=SCALE).eval()
    graph, x = edges(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = net(x, graph)
    assert torch.equal(net(x, graph), expected) and len(computed) == 1
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin._factors._entries == ()
        assert torch.equal(twin(x, graph), expected)
    assert len(computed) == 3
    graph[:, 3] = torch.tensor([3, 0])
    assert torch.equal(net(x, graph), net(x, graph, values=topology("degree", graph, 4)))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_stack_remembers_and_notices_changes(computed, strict):
    net = GraphStack(SumConv, 3, 8, 2, 2, placement="post", scale=SCALE).eval()
    graph, x = edges(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = net(x, graph)
    exported = torch.export.export(net, (x, graph), strict=strict).module()
    assert torch.equal(exported(x, graph), expected) and len(computed) == 1
    graph[:, 3] = torch.tensor([3, 0])
    expected = net(x, graph, values=topology("degree", graph, 4))
    assert torch.equal(exported(x, graph), expected) and len(computed) == 2
    del net
    gc.collect()
    assert torch.equal(exported(x, graph), expected)  # the cache of the stack no longer exists


def test_compiled_code_cannot_change_what_is_remembered():
    kept, graph = FactorMemory(), edges()
    operator = torch.ops.normplace.topology_factor
    first = operator(graph, None, 4, "degree", -1.0, torch.float32, kept.number)
    expected = first.clone()
    first.zero_()
    assert torch.equal(operator(graph, None, 4, "degree", -1.0, torch.float32, kept.number), expected)


def test_a_compiled_stack_remembers_and_notices_changes(computed):
    torch._dynamo.reset()
    net = GraphStack(SumConv, 3, 8, 2, 2, placement="post", scale=SCALE).eval()
    fast = torch.compile(net, backend="eager", fullgraph=True)
    graph, x = edges(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = net(x, graph)
    assert torch.equal(fast(x, graph), expected) and torch.equal(fast(x, graph), expected)
    assert len(computed) == 1
    graph[:, 3] = torch.tensor([3, 0])
    assert torch.equal(fast(x, graph), net(x, graph, values=topology("degree", graph, 4)))
    assert len(computed) == 2
