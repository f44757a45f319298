"""Softmax and power-mean aggregation of rows in groups, compared with PyG's in float64."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from normplace import UsageError

pytest.importorskip("torch_geometric", reason="compares with PyG")

from torch_geometric.nn import aggr

from normplace import pyg

INDEX = torch.tensor([2, 0, 5, 0, 2, 2, 1, 5, 0])
# Groups of at most 3 rows in float64.
CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}
CASES = [
    ("SoftmaxAggregation", {}),
    ("SoftmaxAggregation", {"t": -2.0, "learn": True}),
    ("SoftmaxAggregation", {"t": 0.0, "learn": True, "channels": 4}),
    ("SoftmaxAggregation", {"t": 0.4, "semi_grad": True}),
    ("PowerMeanAggregation", {}),
    ("PowerMeanAggregation", {"learn": True}),
    ("PowerMeanAggregation", {"p": 2.5}),
    ("PowerMeanAggregation", {"p": -0.7, "learn": True}),
    ("PowerMeanAggregation", {"p": 0.3, "learn": True, "channels": 4}),
    ("PowerMeanAggregation", {"p": 4.0, "clamp_min": 0.3, "clamp_max": 1.2, "learn": True}),
    ("PowerMeanAggregation", {"p": -2.0, "clamp_min": 0.3, "clamp_max": 1.2, "learn": True}),
    ("PowerMeanAggregation", {"p": 2.0, "clamp_min": 0.01, "clamp_max": None}),
    ("PowerMeanAggregation", {"p": -2.0, "clamp_min": 0.01, "clamp_max": None, "learn": True}),
]


def rows(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def gradients(module, x, *args, **kwargs):
    leaf = x.clone().requires_grad_()
    y = module(leaf, *args, **kwargs)
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    return [y, leaf.grad, *(parameter.grad for parameter in module.parameters())]


def check(name, options, x, *args, **kwargs):
    ours, peer = (getattr(place, name)(**options).double() for place in (pyg, aggr))
    assert str(ours) == str(peer)
    peer.load_state_dict(ours.state_dict())
    for mine, theirs in zip(gradients(ours, x, *args, **kwargs), gradients(peer, x, *args, **kwargs), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_equals_pyg(name, options):
    check(name, options, rows(9, 4), INDEX)
    check(name, options, rows(9, 4), INDEX, dim_size=8)  # the last groups are empty
    check(name, options, rows(9, 4), ptr=torch.tensor([0, 3, 4, 9]))
    check(name, options, rows(9, 4))


@pytest.mark.parametrize("name", ["SoftmaxAggregation", "PowerMeanAggregation"])
def test_any_dimension_can_hold_the_rows(name):
    check(name, {"learn": True}, rows(2, 9, 4), INDEX)
    check(name, {"learn": True}, rows(2, 4, 9), INDEX, dim=-1)
    check(name, {"learn": True}, rows(9, 2, 4), INDEX, dim=0)


def test_a_power_of_zero_is_the_geometric_mean():
    module = pyg.PowerMeanAggregation(p=0.0, learn=True).double()
    x = rows(9, 4).abs() + 0.1
    y = module(x, INDEX)
    torch.testing.assert_close(y[0], x[INDEX == 0].log().mean(0).exp(), **CLOSE)
    y.sum().backward()
    assert all(torch.isfinite(cast(torch.Tensor, parameter.grad)).all() for parameter in module.parameters())


@pytest.mark.parametrize("p", [1e-4, -1e-4, 1e-8, 50.0, -50.0])
def test_gradients_are_finite_for_every_power(p):
    module = pyg.PowerMeanAggregation(p=p, learn=True)
    x = rows(9, 4).float().requires_grad_()
    module(x, INDEX, dim_size=8).clamp(max=10).sum().backward()
    assert all(torch.isfinite(cast(torch.Tensor, parameter.grad)).all() for parameter in module.parameters())
    assert torch.isfinite(cast(torch.Tensor, x.grad)).all()


def test_empty_input_and_half_precision():
    for module in (pyg.SoftmaxAggregation(learn=True), pyg.PowerMeanAggregation(p=2.0)):
        assert module(torch.empty(0, 4), torch.empty(0, dtype=torch.long), dim_size=3).shape == (3, 4)
        half = module(rows(9, 4).bfloat16(), INDEX)
        assert half.dtype == torch.bfloat16
        # One rounding of the input and one of the result to 8 bits.
        torch.testing.assert_close(half.double(), module.double()(rows(9, 4), INDEX), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: pyg.SoftmaxAggregation(learn=True, semi_grad=True), "leave learn or semi_grad out"),
        (lambda x: pyg.SoftmaxAggregation(channels=4), "set learn"),
        (lambda x: pyg.SoftmaxAggregation(learn=True, channels=3)(x, INDEX), "one for each of the 4 channels"),
        (lambda x: pyg.SoftmaxAggregation(learn=True, channels=4)(x[None], INDEX), "needs rows × channels"),
        (lambda x: pyg.SoftmaxAggregation()(x, INDEX, dim_size=5), "must be from 0 to 4"),
        (lambda x: pyg.SoftmaxAggregation()(x, INDEX.float(), dim_size=6), "index must hold the group"),
        (lambda x: pyg.SoftmaxAggregation()(x, ptr=torch.tensor([0, 5, 3, 9])), "must increase from 0"),
        (lambda x: pyg.SoftmaxAggregation()(x, ptr=torch.tensor([0, 5])), "x has 9 rows"),
        (lambda x: pyg.SoftmaxAggregation().forward(x, INDEX, dim=2), "a dimension 2"),
        (lambda x: pyg.SoftmaxAggregation().forward(x, ptr=torch.tensor([0, 9]), dim_size=2), "dim_size must be 1"),
    ],
)
def test_mistakes_are_one_sentence(call, words):
    with pytest.raises(UsageError, match=words):
        call(rows(9, 4))
