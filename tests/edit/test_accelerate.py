"""PyG's modules of a model replaced by equal ones: numbers, records, refusals, training and undo."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tests.ops.aggregate.cases import graph
from torch import nn

import normplace as npl
from normplace import UsageError
from normplace.edit import unaccelerate

geometric = pytest.importorskip("torch_geometric.nn", reason="replaces PyG's modules")

EDGES = graph()


class Own(geometric.GENConv):
    """A convolution that a user changed."""

    def message(self, x_j, edge_attr):
        return x_j


class Network(nn.Module):
    """Convolutions and aggregations of PyG, nested in other modules."""

    def __init__(self, own: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            geometric.DeepGCNLayer(
                geometric.GENConv(8, 8, aggr=aggr, learn_t=aggr == "softmax", norm="layer"),
                geometric.LayerNorm(8),
                nn.ReLU(),
            )
            for aggr in ("softmax", "powermean")
        )
        self.sage = geometric.SAGEConv(8, 8, aggr=geometric.SoftmaxAggregation(learn=True))
        self.several = geometric.SAGEConv(8, 8, aggr=["mean", "powermean", "std"])
        self.median = geometric.GENConv(8, 8, aggr="median", norm="layer")
        self.own = Own(8, 8, norm="layer") if own else None
        self.pool = geometric.PowerMeanAggregation(p=2.0)

    def forward(self, x, edge_index, batch=None):
        for layer in self.layers:
            x = layer(x, edge_index)
        x = self.several(self.sage(x, edge_index).relu(), edge_index)
        x = self.median(x, edge_index)
        x = x if self.own is None else self.own(x, edge_index)
        return self.pool(x, batch)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network()


def call():
    return torch.randn(13, 8, generator=torch.Generator().manual_seed(1)), EDGES, torch.arange(13) % 3


def modules(model, place):
    return [name for name, module in model.named_modules() if type(module).__module__.startswith(place)]


REPLACED = [
    "layers.0.conv",
    "layers.1.conv",
    "sage.aggr_module",
    "several.aggr_module.aggrs.1",
    "own.aggr_module",
    "pool",
]


def test_every_convolution_and_aggregation_is_replaced(network):
    fast = npl.accelerate(network, *call())
    assert modules(fast, "normplace.pyg") == REPLACED
    assert modules(network, "normplace") == []
    assert fast.state_dict().keys() == network.state_dict().keys()
    # Six layers in float32.
    torch.testing.assert_close(fast(*call()), network(*call()), rtol=1e-5, atol=1e-5)
    record = npl.changes(fast)
    assert [site.name for site in record.sites] == REPLACED
    assert record.refused == (
        "'median' is left alone, because this library has no MedianAggregation.",
        "'own' is left alone, because it is a Own, a subclass that may compute something else.",
    )
    text = str(record)
    assert "replaced 2 x GENConv layers.*.conv (PyG -> normplace)" in " ".join(text.split())
    assert "on the given inputs" in text
    assert npl.accelerate(network).state_dict().keys() == network.state_dict().keys()


def test_training_and_undo_keep_the_weights(network):
    network.layers[0].conv.mlp[0].weight.requires_grad_(False)
    twin, fast = copy.deepcopy(network), npl.accelerate(network)
    for model in (twin, fast):
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(*call()).square().mean().backward()
            optimizer.step()
    restored = unaccelerate(pickle.loads(pickle.dumps(fast)))
    assert modules(restored, "normplace") == []
    for name, value in restored.state_dict().items():
        assert torch.equal(value, fast.state_dict()[name])
        # Three steps in float32 with gradients of order one.
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-4, atol=1e-4)
    assert [p.requires_grad for p in restored.parameters()] == [p.requires_grad for p in network.parameters()]
    torch.testing.assert_close(restored(*call()), fast(*call()), rtol=1e-5, atol=1e-5)
    assert not npl.changes(restored).refused
    with pytest.raises(UsageError, match="nothing to undo"):
        unaccelerate(restored)


def test_shared_modules_and_parameters_stay_shared():
    conv = geometric.GENConv(8, 8, norm="layer")
    tied = geometric.GENConv(8, 8, norm="layer")
    tied.mlp[0].weight = conv.mlp[0].weight
    model = nn.ModuleList([conv, conv, tied])
    fast: Any = npl.accelerate(model)
    assert fast[0] is fast[1]
    assert fast[0].mlp[0].weight is fast[2].mlp[0].weight
    assert len(list(fast.parameters())) == len(list(model.parameters()))
    back: Any = unaccelerate(fast)
    assert back[0] is back[1]
    assert back[0].mlp[0].weight is back[2].mlp[0].weight


@pytest.mark.parametrize("options", [{}, {"aggr": "powermean", "p": 2.0, "edge_dim": 3}, {"in_channels": (6, 4)}])
def test_a_convolution_alone(options):
    conv = geometric.GENConv(**({"in_channels": 6, "out_channels": 8} | options))
    fast = npl.accelerate(conv)
    assert isinstance(fast, npl.models.GENConv)
    assert type(unaccelerate(fast)) is geometric.GENConv
    assert [site.slot for site in npl.changes(fast).sites] == ["GENConv"]


def test_a_width_that_was_read_and_equals_the_output_keeps_its_map():
    conv = geometric.GENConv(-1, 8, norm=None)
    x, edges = torch.randn(5, 8), torch.tensor([[0, 1, 2], [1, 2, 3]])
    expected = conv(x, edges)
    fast = npl.accelerate(conv)
    for other in (fast, unaccelerate(fast)):
        torch.testing.assert_close(other(x, edges), expected)


def test_hooks_and_wrong_results_are_left_alone(network):
    network.layers[0].conv.register_forward_hook(lambda *_: None)
    network.pool = geometric.PowerMeanAggregation(p=0.0, learn=True)  # PyG returns 1, here it is the geometric mean
    network.several.aggr_module.aggrs[1] = geometric.PowerMeanAggregation(p=0.0)
    record = npl.changes(npl.accelerate(network))
    reasons = {reason.split("'")[1]: reason for reason in record.refused}
    assert "it has hooks" in reasons["layers.0.conv"]
    assert "its results differ by" in reasons["pool"]
    assert "it fails on a made-up graph (ZeroDivisionError" in reasons["several.aggr_module.aggrs.1"]
    network.sage.aggr_module = geometric.SoftmaxAggregation()
    assert "sage.aggr_module" in str(npl.changes(npl.accelerate(network)))


class Peeking(nn.Module):
    """Uses a part of its convolution in another way than calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = geometric.GENConv(8, 8)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) * len(type(self.conv).__module__)


@pytest.mark.parametrize(
    ("build", "arguments", "words"),
    [
        (lambda: nn.Linear(2, 2), (), "nothing to accelerate: Linear has no GENConv"),
        (lambda: Own(8, 8, "mean"), (), "nothing to accelerate: 'Own' is left alone"),
        (Peeking, call()[:2], "computes something else"),
        (Peeking, (torch.zeros(3),), "cannot be called with these inputs"),
        (lambda: "model", (), "takes an nn.Module"),
    ],
)
def test_mistakes_are_one_sentence(build, arguments, words):
    with pytest.raises(UsageError, match=words):
        npl.accelerate(build(), *arguments)


def test_a_model_that_takes_a_graph_object_is_compared_in_float64():
    from torch_geometric.data import Batch, Data

    class OfGraphs(Network):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8)

        def forward(self, graphs):
            return super().forward(self.embed(graphs.x), graphs.edge_index, graphs.batch)

    torch.manual_seed(0)
    x, edges, _ = call()
    graphs = Batch.from_data_list([Data(x=x, edge_index=edges), Data(x=2 * x, edge_index=edges)])
    fast = npl.accelerate(OfGraphs(), graphs)
    error = float(npl.changes(fast).note.split()[7])
    assert error < 1e-9
    assert graphs.x.dtype == torch.float32


def test_learned_powers_start_where_the_gradient_depends_on_rounding():
    torch.manual_seed(0)
    model = nn.Sequential(geometric.GENConv(8, 8, aggr="powermean", learn_p=True, norm="layer"))
    conv, x = model[0], torch.randn(40, 8)
    edges = torch.randint(40, (2, 100))
    assert npl.changes(npl.accelerate(conv, x, edges)).refused == ()
    assert conv.aggr_module.p.tolist() == [1.0]  # the model is not changed


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(geometric.GENConv(8, 8, norm="layer") for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, x, edge_index):
        return self.norm(self.convs[1](self.convs[0](x, edge_index), edge_index))


def test_edits_inside_a_convolution_are_neither_lost_nor_undone():
    model, graph = Convolutions(), (torch.randn(6, 8), torch.randint(6, (2, 20)))
    fast = npl.accelerate(model)
    swapped = npl.swap(fast, *graph, norm="rms", slots=["convs.0.mlp.1"])
    scaled = npl.insert(fast, npl.Scale("degree"), "convs.0.mlp.1")
    for edited in (swapped, scaled):
        with pytest.raises(UsageError, match=r"'convs.0' was edited since the model was accelerated"):
            unaccelerate(edited)
    beside = unaccelerate(npl.swap(fast, *graph, norm="rms", slots=["norm"]))
    assert [(site.name, site.note) for site in npl.changes(beside).sites] == [
        ("convs.0", "restored"),
        ("convs.1", "restored"),
    ]
    model.convs[1].mlp[0].register_forward_hook(lambda *_: None)
    assert npl.changes(npl.accelerate(model)).refused[0] == (
        "'convs.1' is left alone, because it has hooks, which the new module would not have."
    )
