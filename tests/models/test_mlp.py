"""The MLP family against hand-written networks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normplace import LayerNorm, UsageError
from normplace.models import MLP, Dense
from normplace.models.activations import ACTIVATIONS, build_activation, variance_gain


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize(
    ("at", "layers"), [("none", ()), ("first", (1,)), ("last", (3,)), ("every", (1, 2, 3)), ((2,), (2,))]
)
def test_plain_network_with_norms_at_chosen_layers(at, layers, where):
    net = MLP((4, 16, 12, 8, 2), norm_at=at, norm_where=where, generator=generator())
    x = torch.randn(5, 4, generator=generator(1))
    h = x
    for number, block in enumerate(net.blocks, start=1):
        dense, width = block.branch.dense, block.branch.dense.out_features
        h = F.linear(h, dense.weight, dense.bias)
        h = F.layer_norm(h, (width,)) if number in layers and where == "before" else h
        h = F.relu(h)
        h = F.layer_norm(h, (width,)) if number in layers and where == "after" else h
    assert torch.equal(net(x), net.head(h))


def test_residual_network_embeds_first_and_normalizes_last():
    net = MLP((4, 16, 16, 16, 2), placement="peri", generator=generator())
    x = torch.randn(5, 4, generator=generator(1))
    h = net.embed(x)
    for block in net.blocks:
        h = h + block.output_norm(block.branch(block.input_norm(h)))
    assert torch.equal(net(x), net.head(net.final_norm(h)))
    assert MLP((4, 16, 16, 2), placement="post").final_norm is None


@pytest.mark.parametrize("norm_at", ["none", "every"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_both_parametrizations_are_one_function_at_the_start(activation, norm_at):
    standard, ntk = (
        MLP((3, 32, 32, 1), activation=activation, norm_at=norm_at, parametrization=kind, generator=generator())
        for kind in ("standard", "ntk")
    )
    x = torch.randn(9, 3, generator=generator(1))
    torch.testing.assert_close(standard(x), ntk(x), rtol=1e-4, atol=1e-5)


def test_initial_statistics():
    dense = Dense(400, 500, "standard", weight_std=math.sqrt(2), bias_std=0.1, generator=generator())
    assert float(dense.weight.detach().std()) == pytest.approx(math.sqrt(2 / 400), rel=0.01)
    assert float(dense.bias.detach().std()) == pytest.approx(0.1, rel=0.1)
    dense = Dense(400, 500, "ntk", weight_std=math.sqrt(2), generator=generator())
    assert float(dense.weight.detach().std()) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_variance_gain_by_monte_carlo(activation):
    u = torch.randn(4_000_000, generator=generator(), dtype=torch.float64)
    squares = build_activation(activation)(u).square()
    # Five standard errors of the mean, which the heavy tail of relu3 needs.
    error = 5 * float(squares.std() / squares.mean()) / len(u) ** 0.5
    assert variance_gain(activation) == pytest.approx(1 / float(squares.mean()), rel=error)


def test_variance_gain_closed_forms():
    assert variance_gain("relu") == pytest.approx(2, abs=1e-9)
    assert variance_gain("leaky_relu") == pytest.approx(2 / (1 + 0.01**2), abs=1e-9)
    assert variance_gain("erf") == pytest.approx(1 / (2 / math.pi * math.asin(2 / 3)), abs=1e-9)


def test_a_seeded_network_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = MLP((2, 8, 1), generator=generator(7))
    assert torch.equal(torch.rand(1), expected)
    second = MLP((2, 8, 1), generator=generator(7))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


MISTAKES = [
    (lambda: MLP((3, 1)), "input, hidden and output"),
    (lambda: MLP((3, 0, 1)), "at least 1"),
    (lambda: MLP((3, 8, 1), norm_at="frist"), "did you mean 'first'"),
    (lambda: MLP((3, 8, 1), norm_at=(2,)), "hidden layers 1 to 1"),
    (lambda: MLP((3, 8, 1), norm_where="befor"), "did you mean 'before'"),
    (lambda: MLP((3, 8, 4, 1), placement="pre"), "of one width"),
    (lambda: MLP((3, 8, 1), placement="pre"), "two or more hidden layers"),
    (lambda: MLP((3, 8, 1), activation="rleu"), "did you mean 'relu'"),
    (lambda: MLP((3, 8, 1), parametrization="ntkk"), "did you mean 'ntk'"),
]


@pytest.mark.parametrize(("build", "reason"), MISTAKES)
def test_mistakes_are_named(build, reason):
    with pytest.raises(UsageError, match=reason):
        build()


def test_norms_come_on_the_asked_device_and_dtype():
    net = MLP((3, 8, 8, 1), norm="batch", dtype=torch.float64)
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    assert isinstance(MLP((3, 8, 8, 1)).blocks[0].branch.norms["preactivation"], LayerNorm)
    assert isinstance(net, nn.Module)
