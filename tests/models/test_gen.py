"""GENConv: PyG's numbers where PyG is right, what PyG lacks, and gradients shared by two processes."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from tests.ops.aggregate.cases import brute, graph
from tests.process_pairs import run_pair
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from normplace import UsageError
from normplace.lab.train.distributed import exit_now
from normplace.models import GENConv, GraphStack
from normplace.ops import Neighbours

EDGES = graph()


def features(rows=13, width=6, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def pair(peer_options=None, **options):
    """A convolution and PyG's, with the same weights, loaded both ways."""
    gen_conv = pytest.importorskip("torch_geometric.nn", reason="compares with PyG").GENConv
    torch.manual_seed(0)
    peer = gen_conv(**(options | (peer_options or {})))
    ours = GENConv(**options)
    assert ours.load_state_dict(peer.state_dict()).missing_keys == []
    peer.load_state_dict(ours.state_dict())
    return ours, peer


@pytest.mark.parametrize(
    "options",
    [
        {"aggr": "softmax"},
        {"aggr": "softmax", "t": 0.1, "learn_t": True, "norm": "layer", "num_layers": 3, "bias": True},
        {"aggr": "softmax_sg", "t": 0.1, "edge_dim": 3},
        {"aggr": "powermean", "edge_dim": 3, "bias": True},
        {"aggr": "mean", "msg_norm": True, "learn_msg_scale": True},
        {"aggr": "max", "edge_dim": 8},
        {"aggr": "add", "norm": "instance", "num_layers": 1},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_equals_pyg(options):
    ours, peer = pair(in_channels=6, out_channels=8, **options)
    x = features()
    edge_attr = None if options.get("edge_dim") is None else features(70, options["edge_dim"], seed=1)
    actual = []
    for conv in (ours, peer):
        leaf = x.clone().requires_grad_()
        y = conv(leaf, EDGES, edge_attr)
        y.square().sum().backward()
        actual.append([y, leaf.grad, *(p.grad for p in conv.parameters() if p.requires_grad)])
    for mine, theirs in zip(*actual, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * (1 + float(theirs.detach().abs().max())))


def test_two_sets_of_nodes_as_pyg():
    ours, peer = pair(in_channels=(6, 4), out_channels=8, msg_norm=True)
    edges = graph(9, 17)
    x = features(9), features(17, 4)
    torch.testing.assert_close(ours(x, edges), peer(x, edges), rtol=1e-5, atol=1e-5)
    ours, peer = pair(in_channels=(6, 8), out_channels=8)
    without = features(9), None
    torch.testing.assert_close(
        ours(without, edges, size=(9, 17)), peer(without, edges, size=(9, 17)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("aggr", "start", "power"),
    [("softmax_sum", 0.7, 0.3), ("powermean_sum", 2.4, 1.0), ("min", -math.inf, 0.0), ("power", 5.0, 0.0)],
)
def test_what_pyg_lacks(aggr, start, power):
    kind = "power" if aggr.startswith("power") else "softmax"
    learned = {} if aggr == "min" else {"learn_t": True, "t": start} if kind == "softmax" else {"p": start}
    scale = {"y": power, "learn_y": True} if aggr.endswith("_sum") else {}
    conv = GENConv(6, 6, aggr, num_layers=1, **learned, **scale)
    with torch.no_grad():
        conv.mlp[0].weight.copy_(torch.eye(6))
    x = features()
    message = x.double()[EDGES[0]].relu() + 1e-7
    expected = brute(kind, message, EDGES, torch.tensor(start, dtype=torch.float64), 13)
    degree = torch.bincount(EDGES[1], minlength=13).double().clamp(min=1)
    y = conv(x, EDGES)
    torch.testing.assert_close(y.double(), x + expected * degree.pow(power)[:, None], rtol=1e-5, atol=1e-6)
    y.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any() for p in conv.parameters())


def test_edge_types_are_rows_of_a_table():
    conv = GENConv(6, 6, edge_types=3)
    types = torch.arange(70) % 3
    plain = GENConv(6, 6)
    plain.load_state_dict({k: v for k, v in conv.state_dict().items() if k != "edge_table.weight"})
    assert conv.edge_table is not None
    terms = conv.edge_table.weight.detach()[types]
    torch.testing.assert_close(conv(features(), EDGES, types), plain(features(), EDGES, terms))


def test_is_a_branch_of_a_stack():
    net = GraphStack(GENConv, 6, 8, 2, 3, placement="pre", order="activation-conv")
    x, built = features(), Neighbours(EDGES, 13)
    y = net(x, EDGES)
    assert torch.equal(y, net(x, built))  # pyright: ignore[reportArgumentType]
    h = net.embed(x)
    for block in net.blocks:
        h = h + block.branch.conv(block.input_norm(h).relu(), EDGES)
    torch.testing.assert_close(y, net.head(net.final_norm(h)))


def test_copies_pickles_resets_and_compiles():
    conv = GENConv(6, 8, learn_t=True, t=0.3, norm="layer", msg_norm=True, learn_msg_scale=True, edge_dim=3)
    x, attr = features(), features(70, 3)
    y = conv(x, EDGES, attr)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(other(x, EDGES, attr), y)
    torch.compiler.reset()
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, EDGES, attr), y)
    with torch.no_grad():
        conv.aggr_module.t.fill_(9.0)
    conv.reset_parameters()
    assert conv.aggr_module.t.item() == pytest.approx(0.3)
    assert "softmax, learn_t=True" in repr(conv)


def test_autocast_keeps_gradients_finite():
    conv = GENConv(6, 8, learn_t=True, edge_dim=3, norm="layer")
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(features(), EDGES, features(70, 3))
    torch.testing.assert_close(y.float(), conv(features(), EDGES, features(70, 3)), rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert conv.aggr_module.t.grad is not None
    assert torch.isfinite(conv.aggr_module.t.grad).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggr": "softmin"}, "unknown aggregation"),
        ({"aggr": "mean_sum"}, "unknown aggregation"),
        ({"aggr": "mean", "learn_t": True}, "no t to learn"),
        ({"aggr": "softmax", "learn_y": True}, "no y to learn"),
        ({"norm": "batches"}, "did you mean 'batch'"),
        ({"edge_dim": 3, "edge_types": 2}, "not both"),
        ({"num_layers": 0}, "at least 1"),
    ],
)
def test_mistakes_are_one_sentence(options, words):
    with pytest.raises(UsageError, match=words):
        GENConv(6, 8, **options)


class OwnSum(torch.nn.Module):
    """An aggregation that the library does not have, called as PyG's are."""

    def forward(self, x, index, *, dim_size, dim):
        return x.new_zeros(*x.shape[:dim], dim_size, x.shape[-1]).index_add(dim, index, x)


@pytest.mark.parametrize("aggr", ["softmax", "powermean", ["softmax", "max"], OwnSum()], ids=str)
@pytest.mark.parametrize(
    ("options", "edge_attr"),
    [
        ({"edge_dim": 3}, features(70)[:, 0]),
        ({"edge_dim": 3}, features(69)[:, 0]),
        ({"edge_dim": 70}, features(70)[:, 0]),
        ({"edge_dim": 3}, features(70, 4)),
        ({"edge_dim": 3}, features(69, 3)),
        ({"edge_dim": 3}, features(1, 3)),
        ({"edge_dim": 3}, features(70, 3)[:, None]),
        ({"edge_dim": 3}, torch.tensor(1.0)),
        ({"edge_dim": -1}, features(70)[:, 0]),
        ({}, features(70, 3)),
        ({}, features(1, 8)),
        ({}, features(69, 8)),
        ({}, torch.tensor(1.0)),
        ({}, [1.0] * 70),
        ({"edge_types": 2}, torch.zeros(69, dtype=torch.long)),
        ({"edge_types": 2}, torch.zeros(1, dtype=torch.long)),
        ({"edge_types": 2}, torch.full((70,), 2)),
        ({"edge_types": 2}, torch.full((70,), -1)),
        ({"edge_types": 2}, torch.zeros(70)),
    ],
)
def test_edge_features_that_do_not_fit_are_refused(aggr, options, edge_attr):
    conv = GENConv(6, 8, aggr=copy.deepcopy(aggr), norm=None, **options)
    with pytest.raises(UsageError, match="edge") as caught:
        conv(features(), EDGES, edge_attr)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@pytest.mark.parametrize("aggr", ["softmax", OwnSum()], ids=["fused", "stored"])
def test_edge_features_of_several_dimensions(aggr):
    conv, x = GENConv(6, 8, aggr=aggr, norm=None, edge_dim=3), features(26).view(2, 13, 6)
    shared, own = features(70, 3, seed=1), features(140, 3, seed=2).view(2, 70, 3)
    for number in range(2):
        torch.testing.assert_close(conv(x, EDGES, shared)[number], conv(x[number], EDGES, shared))
        torch.testing.assert_close(conv(x, EDGES, own)[number], conv(x[number], EDGES, own[number]))
    for wrong in (shared[:-1], shared[:1], own[:1], own[:, :-1], own[None]):
        with pytest.raises(UsageError, match="edge"):
            conv(x, EDGES, wrong)


def test_a_size_that_is_not_a_pair_is_refused():
    with pytest.raises(UsageError, match="numbers of sources and targets"):
        GENConv(6, 8)(features(), EDGES, size=13)


def _worker(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = DistributedDataParallel(GENConv(6, 6, learn_t=True, norm="layer", msg_norm=True, learn_msg_scale=True))
    x, edges = torch.load(f"{folder}/{rank}.pt", weights_only=True)
    net(x, edges).square().sum().backward()
    if rank == 0:
        torch.save({name: p.grad for name, p in net.module.named_parameters()}, f"{folder}/grads.pt")
    distributed.destroy_process_group()
    exit_now()


def test_two_processes_share_the_gradients_of_one(tmp_path):
    parts = [(features(seed=s), graph(seed=s)) for s in (1, 2)]
    for rank, part in enumerate(parts):
        torch.save(part, tmp_path / f"{rank}.pt")
    run_pair(tmp_path, _worker, tmp_path)
    torch.manual_seed(0)
    conv = GENConv(6, 6, learn_t=True, norm="layer", msg_norm=True, learn_msg_scale=True)
    for x, edges in parts:
        (conv(x, edges).square().sum() / 2).backward()
    shared = torch.load(tmp_path / "grads.pt", weights_only=True)
    for name, parameter in conv.named_parameters():
        torch.testing.assert_close(shared[name], parameter.grad, rtol=1e-5, atol=1e-5)
