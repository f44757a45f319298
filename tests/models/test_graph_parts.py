"""What deep graph stacks are made of, each against its formula."""

from __future__ import annotations

import pytest
import torch
from tests.models.small_graph import RING, SumConv, features
from torch import nn

from normplace import BlockSpec, Placement, Scale, UsageError
from normplace.models import Dropout, GraphStack
from normplace.models.graph_parts import SumOfEmbeddings, pool

GRAPH = torch.tensor([0, 0, 2, 2, 2])


def named(name, depth=2, seed=0, **options):
    torch.manual_seed(seed)
    return GraphStack.named(name, SumConv, 3, 8, 2, depth, **options)


def test_published_orders_by_hand():
    x = features()
    pre = named("res+")
    h = pre.embed(x)
    for block in pre.blocks:
        h = h + block.branch.conv(torch.relu(block.input_norm(h)), RING)
    torch.testing.assert_close(pre(x, RING), pre.head(pre.final_norm(h)))
    for name, skip in (("res", 1), ("plain", 0)):
        net = named(name)
        h = net.embed(x)
        for block in net.blocks:
            h = skip * h + torch.relu(block.branch.norms["preactivation"](block.branch.conv(h, RING)))
        torch.testing.assert_close(net(x, RING), net.head(h))
        assert net.final_norm is None
    dense = named("dense", growth=4)
    h = dense.embed(x)
    for block in dense.blocks:
        h = torch.cat([h, torch.relu(block.branch.norms["preactivation"](block.branch.conv(h, RING)))], -1)
    assert h.shape == (5, 16)
    torch.testing.assert_close(dense(x, RING), dense.head(h))


def test_growth_with_norms_around_the_branch():
    placement = Placement.uniform(BlockSpec(input=True, output=True), final=True)
    torch.manual_seed(0)
    net = GraphStack(SumConv, 3, 8, 2, 2, placement=placement, growth=4, order="activation-conv")
    x = features()
    h = net.embed(x)
    for block in net.blocks:
        h = torch.cat([h, block.output_norm(block.branch.conv(torch.relu(block.input_norm(h)), RING))], -1)
    torch.testing.assert_close(net(x, RING), net.head(net.final_norm(h)))


def test_a_stem_is_a_bare_convolution_and_counts_as_a_layer():
    net = named("res+", depth=3, stem=True)
    assert len(net.blocks) == 2
    x = features()
    h = net.stem.conv(net.embed(x), RING)
    for block in net.blocks:
        h = block(h, RING)
    torch.testing.assert_close(net(x, RING), net.head(net.final_norm(h)))
    assert named("res+", depth=1, stem=True)(x, RING).shape == (5, 2)


def dropped_share(before: torch.Tensor, after: torch.Tensor) -> float:
    return float(((after == 0) & (before != 0)).double().mean() / (before != 0).double().mean())


def test_dropout_of_branch_stream_and_head_are_apart():
    x = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    seen = {}

    def watch(name):
        return lambda module, given, out: seen.update({name: (given[0], out)})

    for place in ("branch", "stream", "head"):
        net = named("res+", depth=1, dropout=Dropout(**{place: 0.3}))
        modules = {"branch": net.blocks[0].branch.dropout, "stream": net.stream_dropout, "head": net.head_dropout}
        for name, module in modules.items():
            module.register_forward_hook(watch(name))
        net.blocks[0].branch.conv.register_forward_hook(watch("conv"))
        net(x, RING)
        for name in modules:
            assert dropped_share(*seen[name]) == pytest.approx(0.3 if name == place else 0, abs=0.02), (place, name)
        assert torch.equal(seen["branch"][1], seen["conv"][0])  # published: dropout, then convolution
    assert torch.equal(named("res+", dropout=0.5).eval()(x, RING), named("res+")(x, RING))


@pytest.mark.parametrize("how", ["mean", "sum", "max"])
def test_readouts(how):
    x = features(5, 4).double()
    of = {"mean": lambda rows: rows.mean(0), "sum": lambda rows: rows.sum(0), "max": lambda rows: rows.amax(0)}[how]
    expected = torch.stack([of(x[:2]), torch.zeros(4).double(), of(x[2:]), torch.zeros(4).double()])
    torch.testing.assert_close(pool(x, GRAPH, how, 4), expected)
    torch.testing.assert_close(pool(x, GRAPH, how), expected[:3])
    torch.testing.assert_close(pool(x, None, how), of(x)[None])
    net = named("res+", readout=how)
    node = named("res+")
    kept = []
    node.head.register_forward_hook(lambda module, given, out: kept.append(given[0]))
    node(features(), RING)
    torch.testing.assert_close(net(features(), RING, batch=GRAPH, num_graphs=4), net.head(pool(kept[0], GRAPH, how, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_mean_of_a_large_graph_in_half_precision(dtype):
    # Counted in bfloat16, a graph would never have more than 256 nodes.
    pooled = pool(torch.ones(3000, 1, dtype=dtype), None, "mean")
    assert pooled.dtype == dtype and pooled.item() == 1


def test_a_virtual_node_joins_its_graph_and_no_other():
    net = named("res+", virtual_node=True, readout="mean")
    none = torch.zeros(2, 0, dtype=torch.long)
    x = features().requires_grad_()
    out = net(x, none, batch=GRAPH)
    out[0].sum().backward(retain_graph=True)
    assert bool((x.grad[:2] != 0).any(1).all())
    assert not x.grad[2:].any()
    h, state = net.embed(features()), torch.zeros(3, 8)
    for virtual, block in zip(net.virtual, net.blocks, strict=True):
        state = state + virtual.update(state + pool(h, GRAPH, "mean", 3))
        h = block(h + state[GRAPH], none)
    torch.testing.assert_close(out, net.head(pool(net.final_norm(h), GRAPH, "mean", 3)))
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in net.virtual.parameters())
    alone = net(x[:2].detach(), none)
    torch.testing.assert_close(alone, net(x.detach(), none, batch=GRAPH)[:1])


def test_a_sum_of_embeddings():
    rows = SumOfEmbeddings((3, 2), 4)
    got = rows(torch.tensor([[2, 0], [0, 1]]))
    torch.testing.assert_close(got, torch.stack([rows.table[2] + rows.table[3], rows.table[0] + rows.table[4]]))
    assert list(rows.state_dict()) == ["table"]
    net = named("res+", embedding=SumOfEmbeddings((3, 2), 8))
    assert net(torch.tensor([[2, 0], [0, 1], [1, 1]]), RING[:, :2]).shape == (3, 2)


def test_a_scale_is_a_real_number_where_categories_are_embedded():
    net = named("res+", embedding=SumOfEmbeddings((3, 2), 8), scale=Scale("degree", power=-1))
    categories = torch.tensor([[2, 0], [0, 1], [1, 1]])
    edges = torch.tensor([[1, 2, 0, 0], [0, 0, 1, 2]])
    degrees = torch.tensor([2, 1, 1])
    by_hand = net(categories, edges, values=degrees.double())
    torch.testing.assert_close(net(categories, edges), by_hand)
    torch.testing.assert_close(net(categories, edges, values=degrees), by_hand)
    h = net.embed(categories)
    for block in net.blocks:
        h = h + block.branch.conv(torch.relu(block.input_norm(h) / degrees[:, None]), edges)
    torch.testing.assert_close(by_hand, net.head(net.final_norm(h)))


MISTAKES = [
    (lambda: named("res++"), "did you mean 'res\\+'"),
    (lambda: named("res+", placement="post"), "already sets placement"),
    (lambda: named("res", growth=8), "already sets growth"),
    (lambda: named("res+", readout="men"), "did you mean 'mean'"),
    (lambda: named("res+", dropout=1.0), "branch dropout must lie between 0 and 1"),
    (lambda: Dropout(stream=-0.1), "stream dropout must lie"),
    (lambda: named("dense", growth=0), "at least 1"),
    (lambda: named("dense", groups=2), "widens the stream"),
    (lambda: named("dense", scale=Scale("degree")), "widens the stream"),
    (lambda: GraphStack(SumConv, 3, 8, 2, 2, placement="post", growth=4), "has no add"),
    (
        lambda: GraphStack(SumConv, 3, 8, 2, 2, placement=Placement.uniform(BlockSpec(inner=("x",))), growth=4),
        "site inside",
    ),
    (lambda: pool(features(), GRAPH, "median"), "unknown readout"),
    (lambda: named("res+", groups=0), "at least 1"),
    (lambda: SumOfEmbeddings((3, 2), 4)(torch.tensor([[0, 2]])), "feature 1 must be from 0 to 1, got 2 to 2"),
    (lambda: SumOfEmbeddings((3, 2), 4)(torch.tensor([[-1, 0]])), "feature 0 must be from 0 to 2, got -1"),
    (lambda: SumOfEmbeddings((3, 2), 4)(torch.tensor([0, 1])), "expected 2 integer categories"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_mistakes_are_named(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


def test_new_parts_reset():
    torch.manual_seed(1)
    net = named("res+", stem=True, virtual_node=True, embedding=SumOfEmbeddings((3, 2), 8))
    before = {name: value.clone() for name, value in net.state_dict().items() if "norm" not in name}
    net.reset_parameters()
    for name, value in net.state_dict().items():
        if value.ndim > 1:
            assert not torch.equal(value, before[name]), name
    assert isinstance(net.virtual, nn.ModuleList)
