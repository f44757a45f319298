"""GraphStack: every placement, scale and gate on a plain convolution, and PyG's convolutions where PyG is installed."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from tests.models.small_graph import DEGREE, RING, SumConv, features
from torch import nn

from normplace import Residual, Scale, UsageError
from normplace.models import GraphStack, topology
from normplace.placement.presets import PRESETS
from normplace.placement.scale import Gate


def stack(conv=SumConv, depth=2, seed=0, **options):
    torch.manual_seed(seed)
    return GraphStack(conv, 3, 8, 2, depth, **options)


@pytest.mark.parametrize("placement", [name for name in PRESETS if name != "plain"])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "graph", "pair"])
def test_every_placement_and_norm(placement, norm):
    net = stack(placement=placement, norm=norm)
    x = features()
    y = net(x, RING)
    assert y.shape == (5, 2)
    h = net.embed(x)
    for block in net.blocks:
        h = block(h, RING)
    assert torch.equal(net.head(h if net.final_norm is None else net.final_norm(h)), y)
    y.sum().backward()
    assert (net.final_norm is not None) == (placement in ("pre", "peri", "output", "lns", "mix", "layerscale"))


def test_postdeg_by_hand():
    net = stack(placement="post", scale=Scale("degree", power=-1))
    x = features()
    h = net.embed(x)
    for block in net.blocks:
        h = block.stream_norm(h + torch.relu(block.branch.conv(h, RING))) / DEGREE[:, None]
    torch.testing.assert_close(net(x, RING), net.head(h))
    assert torch.equal(net(x, RING, values=DEGREE), net(x, RING))
    assert "s N(x + F(x)), s = degree^-1" in repr(net)


def test_a_scale_of_any_source_is_the_topology():
    for source in ("k-core", "pagerank", "clustering", "eigenvector", "betweenness", "constant:pagerank"):
        net = stack(placement="peri", scale=Scale(source, power=0.5, slot="output"))
        x = features()
        assert torch.equal(net(x, RING), net(x, RING, values=topology(source, RING, 5)))


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_scale_at_the_head(placement, where):
    net = stack(placement=placement, scale=Scale("degree", where=where, slot="final"))
    plain = stack(placement=placement)
    x = features()
    h = plain.embed(x)
    for block in plain.blocks:
        h = block(h, RING)
    norm = plain.final_norm or nn.Identity()
    expected = norm(DEGREE[:, None] * h) if where == "before" else DEGREE[:, None] * norm(h)
    torch.testing.assert_close(net(x, RING), plain.head(expected))


@pytest.mark.parametrize("slot", [None, "final"])
@pytest.mark.parametrize("gate", ["learned", "mlp"])
def test_a_gate_starts_as_the_scale_and_learns(gate, slot):
    scale = Scale("degree", power=-1, slot=slot)
    net, plain = stack(placement="post", scale=scale, gate=gate), stack(placement="post", scale=scale)
    net.load_state_dict(plain.state_dict(), strict=False)
    x = features()
    torch.testing.assert_close(net(x, RING), plain(x, RING))
    gates = [module for module in net.modules() if isinstance(module, Gate)]
    assert len(gates) == (2 if slot is None else 1)
    optimizer = torch.optim.SGD([p for g in gates for p in g.parameters()], 0.1)
    net(x, RING).square().sum().backward()
    optimizer.step()
    assert not torch.allclose(net(x, RING), plain(x, RING))
    assert all(bool((g(torch.tensor([[0.01], [1.0], [100.0]])) > 0).all()) for g in gates)
    if slot is None:
        assert "s = g(degree^-1)" in repr(net)


def test_a_learned_gate_is_a_power():
    gate = Gate("learned")
    with torch.no_grad():
        gate.power.copy_(torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(gate(torch.tensor([[3.0]])), torch.tensor([[9.0]]) * torch.e)


def test_a_batch_of_graphs_is_its_graphs():
    scale = Scale("pagerank", power=-1)
    net = stack(placement="post", norm="graph", scale=scale).eval()
    x, batch = features(10), torch.arange(10) // 5
    together = net(x, torch.cat([RING, RING + 5], 1), batch=batch)
    apart = torch.cat([net(x[:5], RING), net(x[5:], RING)])
    torch.testing.assert_close(together, apart)
    assert not torch.allclose(net(x, torch.cat([RING, RING + 5], 1)), apart)


def test_a_norm_inside_the_branch_knows_the_graphs():
    from normplace import Placement

    net = stack(placement=Placement.named("plain", norm="preactivation"), norm="graph")
    x, batch = features(10), torch.arange(10) // 5
    together = net(x, torch.cat([RING, RING + 5], 1), batch=batch)
    torch.testing.assert_close(together, torch.cat([net(x[:5], RING), net(x[5:], RING)]))


def test_orders_of_activation_and_dropout():
    first, last = stack(depth=1, order="activation-conv"), stack(depth=1)
    x = features()
    h = first.blocks[0].input_norm(first.embed(x))
    conv = first.blocks[0].branch.conv
    assert torch.equal(first.blocks[0].branch(h, RING), conv(torch.relu(h), RING))
    assert torch.equal(last.blocks[0].branch(h, RING), torch.relu(last.blocks[0].branch.conv(h, RING)))
    dropped = stack(depth=1, dropout=0.5)
    share = float((dropped.blocks[0].branch(torch.ones(2000, 8), RING) == 0).float().mean())
    plain = float((stack(depth=1).blocks[0].branch(torch.ones(2000, 8), RING) == 0).float().mean())
    assert share > plain + 0.1
    assert torch.equal(dropped.eval()(x, RING), stack(depth=1)(x, RING))


def test_edge_features_go_to_convolutions_that_take_them():
    net, weight = stack(), torch.linspace(0.5, 2, RING.shape[1])
    assert not torch.allclose(net(features(), RING, weight), net(features(), RING))

    class Plain(nn.Linear):
        def forward(self, x, edge_index):
            return super().forward(x)

    with pytest.raises(UsageError, match="Plain does not take edge features"):
        stack(Plain)(features(), RING, weight)


@pytest.mark.parametrize("gate", [None, "learned", "mlp"])
def test_copies_reset_dtype_and_meta(gate):
    options = {"placement": "post", "scale": Scale("degree", power=-1), "gate": gate}
    net = stack(**options).eval()
    y = net(features(), RING)
    assert torch.equal(copy.deepcopy(net)(features(), RING), y)
    assert torch.equal(pickle.loads(pickle.dumps(net))(features(), RING), y)
    torch.manual_seed(5)
    net.reset_parameters()
    first = copy.deepcopy(net.state_dict())
    torch.manual_seed(5)
    net.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in net.state_dict().items())
    assert not torch.equal(net(features(), RING), y)
    exact = stack(**options, dtype=torch.float64)
    assert exact(features().double(), RING).dtype == torch.float64
    assert stack(**options).to(torch.bfloat16)(features().bfloat16(), RING).dtype == torch.bfloat16
    assert all(parameter.is_meta for parameter in stack(**options, device="meta").parameters())


def test_compiles_without_a_graph_break():
    torch._dynamo.reset()
    net = stack(placement="peri", norm="graph").eval()
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    assert torch.equal(compiled(features(), RING), net(features(), RING))


def test_gradients():
    net = stack(placement="post", scale=Scale("degree", power=-1), gate="mlp", dtype=torch.float64, activation="tanh")
    names = [name for name, _ in net.named_parameters()]
    values = [net.get_parameter(name).detach().requires_grad_() for name in names]
    x = features().double().requires_grad_()

    def loss(x, *parameters):
        return torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x, RING)).square().sum()

    assert torch.autograd.gradcheck(loss, (x, *values), eps=1e-6, atol=1e-5, fast_mode=True)


MISTAKES = [
    (lambda: stack(gate="learned"), "there is none: pass scale"),
    (lambda: stack(scale=Scale("degree"), gate="lerned"), "did you mean 'learned'"),
    (lambda: stack(order="conv-act"), "did you mean 'conv-activation'"),
    (lambda: stack(depth=0), "at least 1"),
    (lambda: stack(placement="none", scale=Scale("degree")), "has none around the branch"),
    (lambda: stack(placement="peri", scale=Scale("degree")), "choose one with"),
    (lambda: stack()(features(), RING, values=DEGREE), "no scale, so it takes no values"),
    (lambda: stack(scale=Scale("degree"))(features(), RING, values=DEGREE[:3]), "each of the 5 nodes"),
    (lambda: stack(scale=Scale("degree"))(features(), RING, values=DEGREE * 0), "must be positive"),
    (lambda: stack(scale=Scale("dgree"))(features(), RING), "did you mean 'degree'"),
    (lambda: stack(scale=Scale("degree"))(features(3), RING), "must be from 0 to 2, got 0 to 4"),
    (lambda: stack()(features(), RING.float()), "must hold integers"),
    (lambda: stack()(features(), RING.T), "2 × E tensor"),
    (lambda: stack()(features(), RING.tolist()), "2 × E tensor, got list"),
    (lambda: stack()(features(), RING, torch.ones(RING.shape[1] - 1)), "one row for each of the"),
    (lambda: stack()(features(), RING, [1.0]), "one row for each of the"),
    (lambda: stack()(features(), RING, batch=torch.zeros(4).long()), "each of the 5 rows"),
    (lambda: stack()(features(), RING, batch=torch.zeros(5)), "each of the 5 rows"),
    (lambda: stack(readout="mean")(features(), RING, num_graphs="one"), "whole number of at least 1"),
    (lambda: Residual(nn.Identity(), 8, "pre", gate=Gate("mlp")), "the block has none"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_mistakes_are_named(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


@pytest.fixture(scope="module")
def pyg():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyG's own, on import
        return pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")


CONVS = {
    "GAT": lambda nn_, a, b: nn_.GATConv(a, b // 2, heads=2),
    "GATv2": lambda nn_, a, b: nn_.GATv2Conv(a, b // 2, heads=2),
    "GCN": lambda nn_, a, b: nn_.GCNConv(a, b),
    "SAGE": lambda nn_, a, b: nn_.SAGEConv(a, b),
    "GIN": lambda nn_, a, b: nn_.GINConv(nn.Linear(a, b)),
}


@pytest.mark.parametrize("placement", ["none", "post", "pre", "peri", "deepnorm"])
@pytest.mark.parametrize("conv", CONVS)
def test_pyg_convolutions(pyg, conv, placement):
    slot = {"peri": "output"}.get(placement)
    scale = None if placement == "none" else Scale("degree", power=-1, slot=slot)
    net = stack(lambda a, b: CONVS[conv](pyg, a, b), placement=placement, scale=scale, dropout=0.1)
    batch = torch.arange(10) // 5
    edges = torch.cat([RING, RING + 5], 1)
    net(features(10), edges, batch=batch).sum().backward()
    assert all(p.grad is not None for p in net.parameters() if p.requires_grad)
    net.reset_parameters()
    net.eval()
    h = net.embed(features(10))
    for block in net.blocks:
        factor = None if scale is None else scale.factor(DEGREE.repeat(2))
        h = block(h, edges, factor=factor)
    h = h if net.final_norm is None else net.final_norm(h)
    torch.testing.assert_close(net.head(h), net(features(10), edges))


def test_pyg_edge_features_and_weights(pyg):
    edge_attr = torch.randn(RING.shape[1], 4, generator=torch.Generator().manual_seed(0))
    net = stack(lambda a, b: pyg.GATv2Conv(a, b // 2, heads=2, edge_dim=4))
    assert not torch.allclose(net(features(), RING, edge_attr), net(features(), RING, 2 * edge_attr))
    net = stack(lambda a, b: CONVS["GCN"](pyg, a, b))
    assert not torch.allclose(net(features(), RING, edge_attr[:, 0].abs()), net(features(), RING))
    with pytest.raises(UsageError, match="SAGEConv does not take edge features"):
        stack(lambda a, b: CONVS["SAGE"](pyg, a, b))(features(), RING, edge_attr)
