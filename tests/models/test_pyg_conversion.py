"""GENConv from PyG and back: equal outputs and gradients, equal settings, one sentence for what cannot be converted."""

from __future__ import annotations

import pytest
import torch
from tests.ops.aggregate.cases import graph
from torch import nn

from normplace import UsageError
from normplace.models import GENConv

geometric = pytest.importorskip("torch_geometric.nn", reason="converts PyG's modules")

EDGES = graph()
OPTIONS = [
    {},
    {"aggr": "softmax", "learn_t": True, "t": 0.4, "norm": "layer", "num_layers": 3, "expansion": 4, "bias": True},
    {"aggr": "softmax_sg", "t": 0.1, "edge_dim": 3, "eps": 1e-3},
    {"aggr": "powermean", "p": 2.0, "learn_p": True, "msg_norm": True, "learn_msg_scale": True, "norm": None},
    {"aggr": "powermean", "p": 3.0, "edge_dim": 3, "norm": "instance", "num_layers": 1},
    {"aggr": "softmax", "aggr_kwargs": {"learn": True, "channels": 8, "t": 2.0}},
    {"aggr": ["softmax", "powermean", "max"], "aggr_kwargs": {"aggrs_kwargs": [{"learn": True}, {"p": 2.0}, {}]}},
    {"aggr": ["mean", "std"]},
    {"aggr": "median"},
    {"aggr": "min", "flow": "target_to_source", "in_channels": 8},
    {"in_channels": (6, 6)},
]  # fmt: skip


def numbers(conv, width):
    generator = torch.Generator().manual_seed(0)
    conv = conv.double()
    features = torch.randn(70, 3, generator=generator, dtype=torch.float64)
    attr = None if getattr(conv, "lin_edge", None) is None else features
    x = torch.randn(13, width, generator=generator, dtype=torch.float64, requires_grad=True)
    y = conv(x, EDGES, attr)
    gradients = torch.autograd.grad(
        y.square().sum(), [x, *(parameter for parameter in conv.parameters() if parameter.requires_grad)]
    )
    return [y, *gradients]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())) or "default")
def test_equal_in_both_directions(options):
    arguments = {"in_channels": 6, "out_channels": 8, **options}
    torch.manual_seed(0)
    conv = geometric.GENConv(**arguments)
    conv.mlp[0].weight.requires_grad_(False)
    conv.eval()
    converted = GENConv.from_pyg(conv)
    returned = converted.to_pyg()
    assert type(returned) is geometric.GENConv
    assert str(returned) == str(conv)
    for other in (converted, returned):
        assert not other.training
        assert {name: p.requires_grad for name, p in other.named_parameters()} == {
            name: p.requires_grad for name, p in conv.named_parameters()
        }
        # Sums of at most 70 terms, and one of 8 squares over 13 nodes, in float64.
        width = 6 if arguments["in_channels"] != 8 else 8
        for mine, theirs in zip(numbers(other, width), numbers(conv, width), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    own = {id(parameter) for parameter in conv.parameters()}
    assert not own & {id(parameter) for parameter in (*converted.parameters(), *returned.parameters())}


def test_widths_that_were_read_are_converted():
    conv = geometric.GENConv((-1, -1), 8, edge_dim=-1)
    with pytest.raises(UsageError, match="call it once"):
        GENConv.from_pyg(conv)
    conv((torch.randn(9, 6), torch.randn(17, 4)), graph(9, 17), torch.randn(70, 3))
    converted = GENConv.from_pyg(conv)
    assert (converted.in_channels, converted.lin_edge.in_features) == ((6, 4), 3)  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(UsageError, match="call it once"):
        GENConv(-1, 8).to_pyg()


@pytest.mark.parametrize("widths", [8, (8, 4), (6, 8), (8, 8)], ids=str)
def test_a_width_that_was_read_and_equals_the_output_keeps_its_map(widths):
    pair = isinstance(widths, tuple)
    conv = geometric.GENConv((-1, -1) if pair else -1, 8, edge_dim=-1, norm=None)
    src, dst = widths if pair else (widths, widths)
    x, target, attr = torch.randn(9, src), torch.randn(17 if pair else 9, dst), torch.randn(70, 8)
    inputs = ((x, target) if pair else x, graph(9, len(target)), attr)
    expected = conv(*inputs)
    for other in (GENConv.from_pyg(conv), GENConv.from_pyg(conv).to_pyg()):
        torch.testing.assert_close(other(*inputs), expected)


class Changed(geometric.GENConv):
    pass


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: GENConv.from_pyg(nn.Linear(2, 2)), "takes a GENConv of PyG, not a subclass, got Linear"),
        (lambda: GENConv.from_pyg(Changed(6, 8)), "got Changed"),
        (lambda: GENConv(6, 8, "softmax_sum").to_pyg(), "no aggregation 'softmax_sum'"),
        (lambda: GENConv(6, 8, edge_types=3).to_pyg(), "no edge types"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence(build, words):
    with pytest.raises(UsageError, match=words):
        build()


def test_a_changed_network_inside_is_refused():
    conv = geometric.GENConv(6, 8)
    conv.mlp[2] = nn.GELU()
    with pytest.raises(UsageError, match="not the one it was built with"):
        GENConv.from_pyg(conv)
