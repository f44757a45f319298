"""The drop-in of PyG's GENConv, compared with PyG's in float64: outputs, gradients, every kind of graph, explainers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tests.ops.aggregate.cases import graph
from torch import nn

from normplace import UsageError

geometric = pytest.importorskip("torch_geometric", reason="compares with PyG")

from torch_geometric.explain import Explainer, GNNExplainer  # noqa: E402
from torch_geometric.nn import GENConv as PygGENConv  # noqa: E402
from torch_geometric.nn import MessagePassing, SAGEConv, aggr  # noqa: E402

from normplace.pyg import GENConv, PowerMeanAggregation, SoftmaxAggregation  # noqa: E402

NODES, EDGES = 13, graph()
# Both sides compute in float64 with sums of at most 70 terms; 1e-10 leaves room for the rounding of the roots.
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(*args, **options):
    """The drop-in and PyG's convolution with the same random weights, in float64."""
    torch.manual_seed(0)
    peer = PygGENConv(*args, **options).double()
    ours = GENConv(*args, **options).double()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(0.3 * torch.rand_like(parameter))
    ours.load_state_dict(peer.state_dict())
    peer.load_state_dict(ours.state_dict())
    return ours, peer


def results(conv, x, *args, **kwargs):
    """The output, and the gradients of inputs and parameters."""
    leaves = [x] if isinstance(x, torch.Tensor) else [one for one in x if one is not None]
    copies = {id(one): one.clone().requires_grad_() for one in leaves}
    inputs = (
        copies[id(x)] if isinstance(x, torch.Tensor) else tuple(one if one is None else copies[id(one)] for one in x)
    )
    conv.zero_grad()
    y = conv(inputs, *args, **kwargs)
    (y * draw(*y.shape, seed=9)).sum().backward()
    return [y, *(leaf.grad for leaf in copies.values()), *(p.grad for p in conv.parameters())]


def check(ours, peer, *args, **kwargs):
    for mine, theirs in zip(results(ours, *args, **kwargs), results(peer, *args, **kwargs), strict=True):
        if theirs is None:
            assert mine is None or not mine.any()
        else:
            torch.testing.assert_close(mine, theirs, **CLOSE)


OPTIONS = [
    {"aggr": "softmax", "learn_t": True, "t": 0.3},
    {"aggr": "softmax_sg", "t": 0.1},
    {"aggr": "powermean", "p": 2.0},
    {"aggr": "powermean", "p": 3.0, "learn_p": True},
    {"aggr": "powermean", "p": -1.5, "learn_p": True},
    {"aggr": "softmax", "aggr_kwargs": {"t": 0.7, "learn": True, "channels": 8}},
    {"aggr": "powermean", "aggr_kwargs": {"p": 1.3, "learn": True, "channels": 8, "clamp_max": None}},
    {"aggr": "powermean", "aggr_kwargs": {"p": 2.0, "clamp_min": None, "clamp_max": 0.7}},
    {"aggr": ["softmax", "powermean", "max"]},
    {"aggr": ["softmax", "mean"], "aggr_kwargs": {"aggrs_kwargs": [{"t": 2.0, "learn": True}, {}], "mode": "max"}},
    {"aggr": "mean", "msg_norm": True, "learn_msg_scale": True},
    {"aggr": "min"},
    {"aggr": "sum"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("edge_dim", [None, 3])
def test_equals_pyg(options, edge_dim):
    ours, peer = pair(6, 8, norm="layer", bias=True, edge_dim=edge_dim, **options)
    attr = None if edge_dim is None else draw(70, 3, seed=1)
    check(ours, peer, draw(NODES, 6), EDGES, attr)
    assert isinstance(ours, MessagePassing)
    assert list(ours.state_dict()) == list(peer.state_dict())


@pytest.mark.parametrize(
    "module", [aggr.SoftmaxAggregation, SoftmaxAggregation, PowerMeanAggregation, aggr.MedianAggregation]
)
def test_an_aggregation_can_be_a_module(module):
    ours, peer = pair(6, 8, norm="layer", aggr=module())
    check(ours, peer, draw(NODES, 6), EDGES)
    several = aggr.MultiAggregation(["softmax", "mean"], mode="proj", mode_kwargs={"in_channels": 8, "out_channels": 8})
    check(*pair(6, 8, norm="layer", aggr=several), draw(NODES, 6), EDGES)


def sparse(layout, values=None, num_dst=NODES):
    """The edges as an adjacency matrix of targets × sources, sorted by target, and the same edge_index."""
    order = (EDGES[1] * NODES + EDGES[0]).unique()  # without duplicates, which a matrix merges
    edges = torch.stack([order % NODES, order // NODES])
    values = torch.ones(len(order)) if values is None else values[: len(order)]
    matrix = torch.sparse_coo_tensor(edges.flip(0), values, (num_dst, NODES, *values.shape[1:])).coalesce()
    if layout == "csr":
        matrix = torch.sparse_csr_tensor(
            torch.nn.functional.pad(torch.bincount(edges[1], minlength=num_dst).cumsum(0), (1, 0)), edges[0], values,
            size=matrix.shape,
        )  # fmt: skip
    elif layout == "csc":
        matrix = matrix.to_sparse_csc()
    return matrix, edges


class SparseTensor:
    """What the drop-in reads of ``torch_sparse.SparseTensor``."""

    def __init__(self, matrix):
        self.matrix, self.columns = matrix, matrix.col_indices().clone()

    def csr(self):
        return self.matrix.crow_indices(), self.columns, self.matrix.values()

    def sparse_sizes(self):
        return self.matrix.shape[:2]


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_adjacency(layout):
    ours, peer = pair(8, 8, norm="layer")
    matrix, edges = sparse(layout)
    if layout != "csc":  # which PyG does not take
        check(ours, peer, draw(NODES, 8), matrix)
    torch.testing.assert_close(ours(draw(NODES, 8), matrix), ours(draw(NODES, 8), edges), **CLOSE)
    if layout != "csc":
        matrix, edges = sparse(layout, draw(70, 8, seed=2))
        x = draw(NODES, 8)
        torch.testing.assert_close(ours(x, matrix), peer(x, edges, matrix.values()), **CLOSE)
    with pytest.raises(UsageError, match="transposed graph"):
        GENConv(8, 8, flow="target_to_source")(torch.zeros(NODES, 8), matrix)
    with pytest.raises(UsageError, match="there are 12 sources in x, but 13"):
        GENConv(8, 8)(torch.zeros(12, 8), matrix)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_sparse_tensor_and_edge_index_of_other_libraries():
    ours, _ = pair(8, 8, norm="layer")
    matrix, edges = sparse("csr", draw(70, 8, seed=2))
    x = draw(NODES, 8)
    expected = ours(x, edges, matrix.values())
    torch.testing.assert_close(ours(x, SparseTensor(matrix)), expected, **CLOSE)
    wrapped = geometric.EdgeIndex(edges, sparse_size=(NODES, NODES))
    torch.testing.assert_close(ours(x, wrapped, matrix.values()), expected, **CLOSE)


def test_a_changed_matrix_is_read_again():
    conv, x = GENConv(8, 8).eval(), torch.randn(3, 8)
    matrix = torch.eye(3).to_sparse_coo().coalesce()
    before = conv(x, matrix)
    matrix.indices()[1] = torch.tensor([1, 2, 0])
    torch.testing.assert_close(conv(x, matrix), conv(x, torch.tensor([[1, 2, 0], [0, 1, 2]])))
    assert not torch.equal(before, conv(x, matrix))


def test_two_sets_of_nodes_and_their_size():
    ours, peer = pair((6, 4), 8, norm="layer")
    edges, x = graph(9, 17), (draw(9, 6), draw(17, 4))
    check(ours, peer, x, edges)
    check(ours, peer, x, edges, size=(9, 17))
    check(ours, peer, (x[0], None), edges, size=(9, 17))
    for size, words in [((9, 16), "17 targets in x, but 16"), ((8, 17), "9 sources in x, but 8")]:
        with pytest.raises(UsageError, match=words):
            ours(x, edges, size=size)
        with pytest.raises(ValueError, match="size"):
            peer(x, edges, size=size)


def test_widths_are_read_from_the_first_input():
    conv = GENConv((-1, -1), 8, edge_dim=-1, msg_norm=True)
    assert str(conv) == "GENConv((-1, -1), 8, aggr=softmax)"
    conv((torch.randn(9, 6), torch.randn(17, 4)), graph(9, 17), torch.randn(70, 3))
    peer = PygGENConv((6, 4), 8, edge_dim=3, msg_norm=True)
    peer.load_state_dict(conv.state_dict())
    assert [type(conv.lin_src), type(conv.lin_edge), type(conv.lin_dst)] == [nn.Linear] * 3
    with pytest.raises(UsageError, match="end in 6 features"):
        conv((torch.randn(9, 5), torch.randn(17, 4)), graph(9, 17))


def test_messages_against_the_edges():
    ours, peer = pair(8, 8, norm="layer", flow="target_to_source")
    check(ours, peer, draw(NODES, 8), EDGES, draw(70, 8, seed=1))
    with pytest.raises(UsageError, match="one set of nodes"):
        ours((draw(NODES, 8), draw(NODES, 8)), EDGES)


@pytest.mark.parametrize("node_dim", [-2, 0])
def test_further_dimensions_are_independent(node_dim):
    ours, peer = pair(8, 8, norm="layer", aggr=["softmax", "mean"], node_dim=node_dim)
    shape = (3, NODES, 8) if node_dim == -2 else (NODES, 3, 8)
    check(ours, peer, draw(*shape), EDGES)
    edge_shape = (70, 8) if node_dim == -2 else (70, 3, 8)
    check(ours, peer, draw(*shape), EDGES, draw(*edge_shape, seed=1))
    mapped, other = pair(8, 8, norm="layer", edge_dim=2, node_dim=node_dim)
    if node_dim == -2:
        check(mapped, other, draw(*shape), EDGES, draw(70, 2, seed=1))
    with pytest.raises(UsageError, match="before the 8 features"):
        GENConv(8, 8, node_dim=-1)(torch.zeros(NODES, 8), EDGES)


class Network(nn.Module):
    def __init__(self, convolution):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = convolution(6, 8, norm="layer"), convolution(8, 3, norm="layer")

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_an_explainer_finds_the_same_edges():
    networks = [Network(GENConv).double(), Network(PygGENConv).double()]
    networks[1].load_state_dict(networks[0].state_dict())
    masks = []
    for network in networks:
        torch.manual_seed(1)
        explainer = Explainer(
            network, GNNExplainer(epochs=5), explanation_type="model", edge_mask_type="object",
            model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
        )  # fmt: skip
        masks.append(explainer(draw(NODES, 6), EDGES).edge_mask)
    assert masks[0].std() > 0
    # 5 steps of Adam, whose first divides a gradient by itself: rounding errors grow to about 1e-8.
    torch.testing.assert_close(masks[0], masks[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(networks[0](draw(NODES, 6), EDGES), networks[1](draw(NODES, 6), EDGES), **CLOSE)


def test_a_mask_of_another_graph_and_hooks_are_refused():
    conv = GENConv(6, 6)
    conv.explain, conv._edge_mask = True, torch.ones(3)
    with pytest.raises(UsageError, match="there are 70 edges, but a mask of"):
        conv(torch.zeros(NODES, 6), EDGES)
    conv.explain = False
    conv.register_message_forward_hook(lambda *_: None)
    with pytest.raises(UsageError, match="a hook on its message step"):
        conv(torch.zeros(NODES, 6), EDGES)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_torch_script_is_refused_in_one_sentence():
    words = r"^torch.jit.script cannot compile normplace's \w+, .*: use torch.compile, or .*\.$"
    for module in (GENConv(6, 6), nn.Sequential(SoftmaxAggregation()), PowerMeanAggregation()):
        with pytest.raises(UsageError, match=words):
            torch.jit.script(module)


def test_compiles_without_graph_breaks():
    torch.compiler.reset()
    x = torch.randn(NODES, 6)
    cases: list[dict[str, Any]] = [{"aggr": ["softmax", "powermean"]}, {"aggr_kwargs": {"learn": True, "channels": 8}}]
    for options in cases:
        conv = GENConv(6, 8, norm="layer", **options)
        compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, EDGES), conv(x, EDGES))


def test_copies_and_pickles_like_pyg():
    conv = GENConv(6, 8, ["softmax", "powermean"]).eval()
    x = torch.randn(NODES, 6)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(other(x, EDGES), conv(x, EDGES))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggr": ["softmax"], "learn_t": True}, "set them in aggr_kwargs"),
        ({"aggr": []}, "at least one"),
        ({"aggr": ["softmax", "median"]}, "unknown aggregation 'median'"),
        ({"aggr": None}, "unknown aggregation None"),
        ({"aggr_kwargs": {"temperature": 1.0}}, "unknown argument of aggregation 'softmax': 'temperature'"),
        ({"aggr_kwargs": {"learn": True, "semi_grad": True}}, "leave learn or semi_grad out"),
        ({"aggr_kwargs": {"channels": 8}}, "set learn"),
        ({"aggr": ["softmax", "mean"], "aggr_kwargs": {"aggrs_kwargs": [{}]}}, "one entry for each of 2"),
        ({"aggr": ["softmax", "mean"], "aggr_kwargs": {"mode": "attn"}}, "PyG's MultiAggregation"),
        ({"aggr": SoftmaxAggregation(), "aggr_kwargs": {"t": 1.0}}, "leave them out for a module"),
        ({"flow": "up"}, "unknown flow"),
        ({"in_channels": -2}, "at least 1"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(options, words):
    with pytest.raises(UsageError, match=words):
        GENConv(**({"in_channels": 6, "out_channels": 8} | options))


def test_other_convolutions_take_the_aggregations():
    torch.manual_seed(0)
    peer = SAGEConv(6, 8, aggr=aggr.SoftmaxAggregation(learn=True)).double()
    ours = SAGEConv(6, 8, aggr=SoftmaxAggregation(learn=True)).double()
    ours.load_state_dict(peer.state_dict())
    check(ours, peer, draw(NODES, 6), EDGES)
