"""A network with an inserted scale computes the same as one written by hand, and is unchanged otherwise."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import normplace as npl
from normplace import Scale, UsageError, insert
from normplace.edit import insertions
from normplace.models import memory, topology

EDGES = torch.tensor([[0, 1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 2, 5], [1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 2, 0, 0]])
NODES = 7  # node 6 is isolated


class Net(nn.Module):
    """Two sum convolutions, each followed by a norm; ``factor`` and ``where`` are the scale written by hand."""

    def __init__(self, norm=nn.LayerNorm, factor=None, where="after"):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.convs = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norms = nn.ModuleList(norm(8) for _ in range(2))
        self.factor, self.where = factor, where

    def forward(self, x, edge_index):
        h = self.embed(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = conv(h.index_add(0, edge_index[1], h[edge_index[0]]))
            if self.factor is None:
                h = norm(h)
            else:
                h = norm(self.factor * h) if self.where == "before" else self.factor * norm(h)
            h = torch.tanh(h)
        return self.head(h)


def build(**options):
    torch.manual_seed(0)
    net = Net(**options)
    with torch.no_grad():
        for norm in net.norms:
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
    return net.double()


def rows(n=NODES, dim=3, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compare(net, by_hand, *inputs):
    """Forward and every gradient, that of the input included."""
    x = rows().requires_grad_()
    twin = x.detach().clone().requires_grad_()
    y, expected = net(x, *inputs), by_hand(twin, *inputs)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad, rtol=1e-12, atol=1e-12)
    gradients = {name.removeprefix("_orig_mod."): parameter.grad for name, parameter in net.named_parameters()}
    for name, parameter in by_hand.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("source", ["degree", "total-degree", "k-core", "pagerank", "constant:degree"])
def test_the_output_matches_the_network_written_by_hand(source, where):
    scale = Scale(source, power=-0.5, where=where)
    factor = topology(source, EDGES, NODES).double().pow(-0.5)[:, None]
    compare(insert(build(), scale), build(factor=factor, where=where), EDGES)


@torch.no_grad()
def test_values_of_tokens_of_each_call():
    """Any network: the factor has the leading dimensions of the features, and may depend on the arguments."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True).eval()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    mass = 1 + torch.arange(10.0).view(2, 5)

    def branch(y: torch.Tensor) -> torch.Tensor:
        return model.linear2(model.linear1(y).relu())

    h = x + model.self_attn(*[mass[..., None] * model.norm1(x)] * 3)[0]
    expected = h + branch(mass[..., None] * model.norm2(h))
    scale = Scale("mass")
    for values in (mass, lambda src: mass[:, : src.shape[1]]):
        net = insert(model, scale, values=values, inputs=(x,))
        torch.testing.assert_close(net(x), expected)
    per_sample = insert(model, scale, "norm1", values=lambda src: torch.tensor([1.0, 2.0]))
    h = x + model.self_attn(*[torch.tensor([1.0, 2.0]).view(2, 1, 1) * model.norm1(x)] * 3)[0]
    torch.testing.assert_close(per_sample(x), h + branch(model.norm2(h)))
    with pytest.raises(UsageError, match=r"features of shape \(2, 4, 8\) where the scale has values of shape \(2, 5\)"):
        insert(model, scale, values=mass)(x[:, :4])


def test_values_can_be_given():
    values = torch.linspace(0.5, 3, NODES, dtype=torch.float64)
    compare(insert(build(), Scale("mass", power=2), values=values), build(factor=values.square()[:, None]), EDGES)


def test_only_the_chosen_norms_are_scaled():
    x, scale = rows(), Scale("degree", power=-1)
    first = insert(build(), scale, after="norms.0")
    hand = build()
    h = hand.embed(x)
    for k in range(2):
        h = hand.norms[k](hand.convs[k](h.index_add(0, EDGES[1], h[EDGES[0]])))
        h = torch.tanh(h / topology("degree", EDGES, NODES)[:, None] if k == 0 else h)
    torch.testing.assert_close(first(x, EDGES), hand.head(h), rtol=1e-12, atol=1e-12)
    net = build()
    for choice in (["norms.0"], net.norms[0], lambda name, _: name.endswith("s.0") and "norm" in name):
        assert torch.equal(insert(net, scale, after=choice)(x, EDGES), first(x, EDGES))
    both = insert(net, scale, after=lambda _, module: isinstance(module, nn.LayerNorm))
    assert torch.equal(both(x, EDGES), insert(net, scale)(x, EDGES))


def test_the_model_is_unchanged_and_its_state_dict_loads():
    net = build()
    before, keys = net(rows(), EDGES), list(net.state_dict())
    changed = insert(net, Scale("degree", power=-1))
    assert type(changed) is Net and list(changed.state_dict()) == keys
    assert torch.equal(net(rows(), EDGES), before)
    assert not torch.allclose(changed(rows(), EDGES), before)
    other = Net().double()
    changed.load_state_dict(other.state_dict(), strict=True)
    expected = insert(other, Scale("degree", power=-1))(rows(), EDGES)
    assert torch.equal(changed(rows(), EDGES), expected)
    other.load_state_dict(changed.state_dict(), strict=True)


@pytest.mark.parametrize("gate", ["learned", "mlp"])
def test_a_gate_starts_as_the_scale_and_learns(gate):
    scale = Scale("degree", power=-1)
    net, gated = insert(build(), scale), insert(build(), scale, gate=gate)
    torch.testing.assert_close(gated(rows(), EDGES), net(rows(), EDGES), rtol=1e-12, atol=1e-12)
    new = set(gated.state_dict()) - set(net.state_dict())
    assert new and all(".scale_gate." in name for name in new)
    assert len({name.split(".scale_gate")[0] for name in new}) == 2
    optimizer = torch.optim.SGD([p for name, p in gated.named_parameters() if "scale_gate" in name], 0.1)
    gated(rows(), EDGES).square().sum().backward()
    optimizer.step()
    assert not torch.allclose(gated(rows(), EDGES), net(rows(), EDGES))
    assert str(insertions(gated)).startswith("norms.0  LayerNorm  g(degree^-1) * N(x)")
    twice = insert(gated, Scale("k-core"), gate=gate)
    assert "norms.1.scale_gate_2.power" in twice.state_dict() or gate == "mlp"


def test_scales_add_up():
    net = insert(insert(build(), Scale("degree", power=-1)), Scale("pagerank", power=2))
    factor = topology("pagerank", EDGES, NODES).double().square() / topology("degree", EDGES, NODES)
    compare(net, build(factor=factor[:, None]), EDGES)
    assert [site.equation for site in insertions(net).sites] == ["degree^-1 * N(x)"] * 2 + ["pagerank^2 * N(x)"] * 2


def test_copies_and_pickles_are_independent():
    net = insert(build(), Scale("degree", power=-1), gate="learned")
    expected = net(rows(), EDGES)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(rows(), EDGES), expected)
        assert insertions(twin) == insertions(net)
        with torch.no_grad():
            twin.norms[0].scale_gate.power.add_(1)
        assert not torch.allclose(twin(rows(), EDGES), expected)
        assert torch.equal(net(rows(), EDGES), expected)


def test_a_model_read_in_another_process_takes_more_hooks(tmp_path):
    """Hook ids start at 0 in every process: a new hook must not replace a loaded one."""
    conv = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).double()
    net = insert(conv, Scale("mass"), values=torch.arange(1.0, NODES + 1))
    (tmp_path / "net.pkl").write_bytes(pickle.dumps((net, rows(), net(rows()))))
    code = (
        "import pickle, sys, torch\n"
        "net, x, expected = pickle.load(open(sys.argv[1], 'rb'))\n"
        "(number,) = net[1]._forward_hooks\n"
        "for _ in range(number + 1): net[1].register_forward_hook(lambda *_: None)\n"
        "assert torch.equal(net(x), expected)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.pkl")], check=True)


def test_it_trains_and_evaluates():
    torch.manual_seed(0)
    net = insert(Net(norm=nn.BatchNorm1d).double(), Scale("degree", power=-1))
    hand = copy.deepcopy(Net(norm=nn.BatchNorm1d, factor=1 / topology("degree", EDGES, NODES).double()[:, None]))
    hand = hand.double()
    hand.load_state_dict(net.state_dict())
    for model in (net, hand):
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(5):
            optimizer.zero_grad()
            model(rows(), EDGES).square().sum().backward()
            optimizer.step()
        model.eval()
    torch.testing.assert_close(net(rows(), EDGES), hand(rows(), EDGES), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("with_values", [False, True])
def test_it_compiles(with_values):
    torch._dynamo.reset()
    values = topology("degree", EDGES, NODES) if with_values else None
    net = insert(build(), Scale("degree", power=-1), gate="learned", values=values)
    fast = torch.compile(net, backend="eager", fullgraph=True)
    eager = copy.deepcopy(net)
    for _ in range(2):
        compare(fast, eager, EDGES)
    if not with_values:
        changed = EDGES.clone()
        changed[1] = (changed[1] + 1) % NODES
        torch.testing.assert_close(fast(rows(), changed), eager(rows(), changed))


def test_it_trains_under_distributed_data_parallel():
    from torch import distributed

    if not distributed.is_available():
        pytest.skip("torch was built without distributed training")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        compare_with_data_parallel(insert(build(), Scale("degree", power=-1), gate="learned"))
    finally:
        distributed.destroy_process_group()


def compare_with_data_parallel(net):
    """Compare gradients; the wrapper is gone before the process group, whose end could wait for it forever."""
    parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(net))
    x = rows()
    for model in (net, parallel):
        model(x, EDGES).square().sum().backward()
    for (name, one), two in zip(net.named_parameters(), parallel.module.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, msg=name)


def test_the_topology_is_computed_once_for_all_norms(monkeypatch):
    computed = []
    monkeypatch.setattr(memory, "topology", lambda name, *rest: computed.append(name) or topology(name, *rest))
    net, graph = insert(build(), Scale("k-core", power=-1)), EDGES.clone()
    first = net(rows(), graph)
    assert torch.equal(net(rows(), graph), first)
    assert computed == ["k-core"]
    graph[:, -1] = torch.tensor([5, 6])
    net(rows(), graph)
    assert len(computed) == 2


class WithData(nn.Module):
    """A minimal network that takes its graph as one object."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, data):
        return self.norm(data.x)


class Method(WithData):
    """A network whose norm is reachable without its forward."""

    def encode(self, x, edge_index):
        return self.norm(x)

    def forward(self, x, edge_index, batch=None):
        return self.encode(x, edge_index)


def test_the_graph_is_found_in_an_object_and_by_name():
    x, pairs, scale = rows(), EDGES.flip(0), Scale("degree")
    data = SimpleNamespace(x=x, edge_index=EDGES, pairs=pairs)
    normed = nn.functional.layer_norm(x, (3,))
    degree = topology("degree", EDGES, NODES).double()[:, None]
    flipped = topology("degree", pairs, NODES).double()[:, None]
    torch.testing.assert_close(insert(WithData().double(), scale)(data), normed * degree)
    torch.testing.assert_close(insert(WithData().double(), scale)(data=data), normed * degree)
    torch.testing.assert_close(insert(WithData().double(), scale, edges="data.pairs")(data), normed * flipped)


class HandNorm(nn.Module):
    """A norm that is known by its arithmetic only."""

    def __init__(self, dim):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() + self.bias


def test_norms_of_any_class_are_found_on_example_inputs():
    factor = topology("degree", EDGES, NODES).double().pow(-1)[:, None]
    scale, inputs = Scale("degree", power=-1), (rows(), EDGES)
    with pytest.raises(UsageError, match="no known norm module"):
        insert(build(norm=HandNorm), scale)
    compare(insert(build(norm=HandNorm), scale, inputs=inputs), build(norm=HandNorm, factor=factor), EDGES)
    compare(insert(build(), scale, inputs=inputs), build(factor=factor), EDGES)


def test_example_inputs_show_mistakes_at_once():
    net, scale = build(), Scale("degree", power=-1)
    net.unused = nn.LayerNorm(8)
    with pytest.raises(UsageError, match="does not call 'unused'"):
        insert(net, scale, after="unused", inputs=(rows(), EDGES))
    with pytest.raises(UsageError, match="7 rows where the graph has 5 nodes"):
        insert(net, scale, after="norms.0", values=torch.ones(5), inputs=(rows(), EDGES))


def test_refusals_name_the_mistake():
    x, scale = rows(), Scale("degree")
    net = Method().double()

    def complaint(call) -> str:
        with pytest.raises(UsageError) as caught:
            call()
        return str(caught.value)

    assert "did you mean 'degree'" in complaint(lambda: insert(net, Scale("dgree")))
    assert "takes a Scale, such as" in complaint(lambda: insert(net, "degree"))
    assert "leave it out, and choose the norms" in complaint(lambda: insert(net, Scale("degree", slot="final")))
    assert "did you mean 'norm'" in complaint(lambda: insert(net, scale, after="norms"))
    assert "choose from 0." in complaint(lambda: insert(nn.Sequential(nn.LayerNorm(3)), scale, after="norm"))
    assert "chooses no module" in complaint(lambda: insert(net, scale, after=lambda *_: False))
    assert "names 'norm' twice" in complaint(lambda: insert(net, scale, after=["norm", net.norm]))
    assert "is not part of the model" in complaint(lambda: insert(net, scale, after=nn.LayerNorm(3)))
    assert "has no known norm module" in complaint(lambda: insert(nn.Linear(3, 3), scale))
    assert "is inside ''" in complaint(lambda: insert(net, scale, after=lambda *_: True))
    assert "did you mean 'learned'" in complaint(lambda: insert(net, scale, gate="lerned"))
    wrapped = nn.Sequential(nn.Sequential(nn.LayerNorm(3)))
    assert "name the norm inside it" in complaint(lambda: insert(wrapped, scale, after="0", gate="mlp"))
    assert "must be a tensor or a function" in complaint(lambda: insert(net, scale, values=[1.0] * NODES))
    wide = insert(net, scale, values=torch.ones(NODES, 2))
    assert "where the scale has values of shape (7, 2)" in complaint(lambda: wide(x, EDGES))
    assert "must be positive" in complaint(lambda: insert(net, scale, values=torch.zeros(NODES)))
    assert "no argument holds the edges" in complaint(lambda: insert(WithData().double(), scale)(SimpleNamespace(x=x)))
    assert "7 rows where the graph has 5 nodes" in complaint(lambda: insert(net, scale, values=torch.ones(5))(x, EDGES))
    assert "from 0 to 2" in complaint(lambda: insert(net, scale)(x[:3], EDGES))
    method = insert(Method().double(), scale)
    method(x, EDGES)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        method(rows(dim=4), EDGES)  # the failed call does not leave its factor behind
    assert "called outside the model's forward" in complaint(lambda: method.encode(x, EDGES))


def test_the_report_notes_what_the_norm_does_to_the_scale():
    before = Scale("degree", where="before")
    net = nn.ModuleDict({"layer": nn.LayerNorm(3, eps=1e-3), "rms": nn.RMSNorm(3), "batch": nn.BatchNorm1d(3)})
    sites = {site.name: site for site in insertions(insert(net, before)).sites}
    assert sites["layer"].equation == "N(degree * x)"
    assert "divides the scale out again, up to its eps of 0.001" in sites["layer"].note
    assert "up to the machine epsilon" in sites["rms"].note
    assert sites["batch"].note == ""
    assert all(site.note == "" for site in insertions(insert(net, Scale("degree"))).sites)
    messages = insert(nn.ModuleDict({"msg": npl.MsgNorm(3)}), before)
    assert "the scale has no effect" in str(insertions(messages))
    assert str(insertions(net)) == "no scale was inserted"
    assert insertions(insert(net, before)).to_dict()["sites"][0]["name"] == "layer"


@pytest.fixture(scope="module")
def pyg():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyG's own, on import
        return pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_gat_of_pyg(pyg, where):
    from torch_geometric.nn import GAT

    torch.manual_seed(0)
    gat = GAT(3, 8, num_layers=3, out_channels=2, heads=2, norm="LayerNorm", norm_kwargs={"mode": "node"}).double()
    scale = Scale("degree", power=-1, where=where)
    net = insert(gat, scale)
    assert [site.name for site in insertions(net).sites] == ["norms.0", "norms.1"]
    factor = 1 / topology("degree", EDGES, NODES).double()[:, None]
    h = x = rows()
    for k in range(2):
        h = gat.convs[k](h, EDGES)
        h = gat.norms[k](factor * h) if where == "before" else factor * gat.norms[k](h)
        h = gat.act(h)
    torch.testing.assert_close(net(x, EDGES), gat.convs[2](h, EDGES), rtol=1e-12, atol=1e-12)


def test_a_batch_of_pyg(pyg):
    from torch_geometric.data import Batch, Data

    graphs = [Data(x=rows(seed=seed), edge_index=EDGES) for seed in range(3)]
    net = insert(WithData().double(), Scale("pagerank"))
    together = net(Batch.from_data_list(graphs))
    torch.testing.assert_close(together, torch.cat([net(graph) for graph in graphs]), rtol=1e-6, atol=1e-6)


def test_survival_predicts_the_effect_of_a_scale(pyg):
    """A change of the scalar affects the output after a norm over features, but not before it."""
    from torch_geometric.nn import GAT

    torch.manual_seed(0)
    gat = GAT(3, 16, num_layers=3, out_channels=2, norm="LayerNorm", norm_kwargs={"mode": "node"}).double()
    table = npl.survival(gat, rows(), EDGES)
    assert all(site.kept < 1e-2 and site.after > 0.05 for site in table.sites)
    values = torch.ones(NODES, dtype=torch.float64)
    change = torch.where(torch.arange(NODES) % 2 == 0, 2.0, 0.5).double()

    @torch.no_grad()
    def effect(where):
        scale = Scale("mass", where=where)
        y = insert(gat, scale, values=values)(rows(), EDGES)
        return float((insert(gat, scale, values=values * change)(rows(), EDGES) - y).norm() / y.norm())

    assert effect("before") < 0.02 < 0.05 < effect("after")
    again = npl.survival(insert(gat, Scale("degree", power=-1)), rows(), EDGES)
    assert [site.name for site in again.sites] == [site.name for site in table.sites]
    assert {site.method for site in again.sites} == {"jvp"}
    assert all(site.kept < 1e-2 and site.after > 0.05 for site in again.sites)


@torch.no_grad()
@pytest.mark.parametrize("gate", [None, "learned"])
def test_an_inserted_scale_is_recorded_and_loads_again(tmp_path, gate):
    net = insert(build(), Scale("degree", power=-1), after="norms.1", gate=gate)
    assert [(site.action, site.slot, site.name) for site in npl.changes(net).sites] == [("added", "scale", "norms.1")]
    npl.edit.save(net, tmp_path)
    torch.manual_seed(5)
    loaded = npl.edit.load(tmp_path, Net().double(), rows(), EDGES)
    assert torch.equal(loaded(rows(), EDGES), net(rows(), EDGES))


def test_a_scale_with_values_does_not_load_without_them(tmp_path):
    npl.edit.save(insert(build(), Scale("age"), values=torch.ones(NODES)), tmp_path)
    with pytest.raises(UsageError, match="the values of the scale 'age' are not recorded"):
        npl.edit.load(tmp_path, build(), rows(), EDGES)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.up(self.norm(x))


@torch.no_grad()
def test_a_norm_with_a_scale_is_neither_moved_nor_removed():
    model, x = nn.Sequential(Block(), Block()), rows(5, 8).float()
    scaled = insert(model, Scale("gain"), "0.norm", values=torch.full((5,), 2.0))
    for to in ("post", "output"):
        with pytest.raises(UsageError, match=r"the norm '0.norm' has an inserted scale, which belongs to its present"):
            npl.move(scaled, x, to=to)
    assert insertions(npl.move(scaled, x, to="peri")) == insertions(scaled)


def test_a_model_is_copied_after_a_norm_with_a_scale_was_replaced():
    scaled = insert(build(), Scale("degree"))
    scaled.norms[0] = nn.LayerNorm(8).double()
    for copied in (copy.deepcopy(scaled), pickle.loads(pickle.dumps(scaled))):
        torch.testing.assert_close(copied(rows(), EDGES), scaled(rows(), EDGES), rtol=0, atol=0)
