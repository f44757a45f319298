"""Recommenders against dense matrices in float64, their gradients included."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tests.lab.tasks.recommend.recommend_cases import some_interactions
from torch.nn import functional as F

from normplace import Scale, UsageError
from normplace.models.recommend import Adjacency, LightGCN, NormalizedGCN
from normplace.placement.presets import PRESETS

DATA = some_interactions()
USERS, ITEMS, NODES = DATA.num_users, DATA.num_items, DATA.num_nodes


def dense():
    """D^-1/2 A D^-1/2 from its definition."""
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    for user, item in DATA.train.T.tolist():
        matrix[user, USERS + item] = matrix[USERS + item, user] = 1
    root = matrix.sum(1).clamp(min=1).sqrt()
    return matrix / root[:, None] / root


def graph(dtype=torch.float64):
    return Adjacency(DATA.edges, NODES, dtype)


def table(seed=0, dim=5):
    return torch.randn(NODES, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_propagation_and_its_gradient_equal_the_dense_product():
    x, weight = table().requires_grad_(), table(1)
    torch.testing.assert_close(graph()(x), dense() @ x, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad((graph()(x) * weight).sum(), x)
    torch.testing.assert_close(gradient, dense().T @ weight, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(graph(), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(graph(), (x,), fast_mode=True)
    single = graph()(x.float())  # the adjacency takes the dtype of what it propagates
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), dense() @ x, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_is_not_contiguous():
    x = table().requires_grad_()
    (gradient,) = torch.autograd.grad(graph()(x).sum(), x)  # the gradient of a sum is expanded, not stored
    torch.testing.assert_close(gradient, dense() @ torch.ones_like(x), rtol=1e-12, atol=1e-12)


def test_a_node_without_edges_receives_nothing():
    assert torch.equal(graph()(table())[0], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_lightgcn_is_the_mean_of_its_layers(depth):
    net = LightGCN(USERS, ITEMS, 5, depth).double()
    layers = [net.embedding.detach()]
    for _ in range(depth):
        layers.append(dense() @ layers[-1])
    expected = torch.stack(layers).mean(0)
    torch.testing.assert_close(net(graph()).detach(), expected, rtol=1e-12, atol=1e-12)
    weight = table(1)
    (net(graph()) * weight).sum().backward()
    powers = sum(torch.linalg.matrix_power(dense(), k) for k in range(depth + 1)) / (depth + 1)
    torch.testing.assert_close(net.embedding.grad, powers @ weight, rtol=1e-12, atol=1e-12)


def by_hand(net, norm, factor, where):
    """Post placement: N(x + A x), the scale on either side, and the last stream over dim^(1/4)."""
    x, total = net.embedding, 0
    for block in net.blocks:
        x = x + dense() @ x
        x = factor * x if where == "before" else x
        x = norm(x, block.stream_norm)
        x = factor * x if where == "after" else x
        total = total + x
    return (x if net.combine == "last" else total / len(net.blocks)) / 5**0.25


def layer_norm(x, module):
    return F.layer_norm(x, (5,), module.weight, module.bias, module.eps)


def rms_norm(x, module):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.eps) * module.weight


@pytest.mark.parametrize("combine", ["last", "mean"])
@pytest.mark.parametrize("where", ["none", "before", "after"])
@pytest.mark.parametrize(("name", "norm"), [("layer", layer_norm), ("rms", rms_norm)])
def test_the_normalized_network_equals_its_equation(name, norm, where, combine):
    scale = None if where == "none" else Scale("degree", -0.5, where)
    options = {"scale": scale, "combine": combine, "generator": torch.Generator().manual_seed(0)}
    net = NormalizedGCN(USERS, ITEMS, 5, 2, "post", name, **options).double()
    factor = torch.linspace(0.5, 3, NODES, dtype=torch.float64)[:, None]
    if scale is not None:
        factor = scale.factor(factor[:, 0])
    expected = by_hand(net, norm, factor, where)
    given = net(graph(), factor=None if scale is None else factor)
    torch.testing.assert_close(given, expected, rtol=1e-10, atol=1e-10)
    names = [name for name, _ in net.named_parameters()]
    ours, theirs = (
        torch.autograd.grad((out * table(1)).sum(), [net.get_parameter(n) for n in names]) for out in (given, expected)
    )
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("placement", [name for name in PRESETS if name != "plain"])
def test_every_placement(placement):
    net = NormalizedGCN(USERS, ITEMS, 5, 2, placement, generator=torch.Generator().manual_seed(0)).double()
    x = net.embedding
    for block in net.blocks:
        x = block(x, graph())
    x = x if net.final_norm is None else net.final_norm(x)
    torch.testing.assert_close(net(graph()), x / 5**0.25)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_scale_at_the_end(placement, where):
    scale = Scale("degree", where=where, slot="final")
    nets = [
        NormalizedGCN(USERS, ITEMS, 5, 2, placement, scale=s, generator=torch.Generator().manual_seed(0)).double()
        for s in (scale, None)
    ]
    factor = torch.linspace(0.5, 3, NODES, dtype=torch.float64)[:, None]
    x = nets[1].embedding
    for block in nets[1].blocks:
        x = block(x, graph())
    norm = nets[1].final_norm or torch.nn.Identity()
    expected = norm(factor * x) if where == "before" else factor * norm(x)
    torch.testing.assert_close(nets[0](graph(), factor=factor), expected / 5**0.25)


def test_networks_that_differ_in_their_scale_start_alike():
    first, second = (
        NormalizedGCN(USERS, ITEMS, scale=scale, generator=torch.Generator().manual_seed(3)).state_dict()
        for scale in (None, Scale("degree", -0.5))
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("kind", [LightGCN, NormalizedGCN])
def test_copies_and_reset(kind):
    net, there = kind(USERS, ITEMS, 5), graph(torch.float32)
    expected = net(there)
    assert torch.equal(copy.deepcopy(net)(copy.deepcopy(there)), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(pickle.loads(pickle.dumps(there))), expected)
    assert there.state_dict() == {}
    torch.manual_seed(5)
    net.reset_parameters()
    first = net(there)
    assert not torch.equal(first, expected)
    torch.manual_seed(5)
    net.reset_parameters()
    assert torch.equal(net(there), first)
    assert float(net.embedding.detach().std()) == pytest.approx(0.1, rel=0.3)


PATH = torch.tensor([[0, 1], [1, 0]])
MISTAKES = [
    (lambda: Adjacency(PATH[0], 2), "shape 2 × E"),
    (lambda: Adjacency(PATH.float(), 2), "must be integers"),
    (lambda: Adjacency(PATH, 1), "a node outside 0 to 0"),
    (lambda: Adjacency(PATH[:, :1], 2), "lacks its reverse"),
    (lambda: Adjacency(PATH.repeat(1, 2), 2), "is repeated"),
    (lambda: LightGCN(0, 3), "at least 1"),
    (lambda: LightGCN(2, 2)(graph(torch.float32)), "30 nodes, but there are 2 users and 2 items"),
    (lambda: NormalizedGCN(2, 2, depth=0), "norms are in blocks"),
    (lambda: NormalizedGCN(2, 2, combine="men"), "did you mean 'mean'"),
    (lambda: NormalizedGCN(2, 2, placement="none", scale=Scale("degree")), "has none around the branch"),
    (lambda: NormalizedGCN(USERS, ITEMS)(graph(), factor=torch.ones(NODES, 1)), "so it takes no factor"),
    (lambda: NormalizedGCN(USERS, ITEMS, scale=Scale("degree"))(graph()), "scales by degree: pass factor"),
]


@pytest.mark.parametrize(("call", "sentence"), MISTAKES)
def test_mistakes_are_named(call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call()
