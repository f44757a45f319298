"""The passes for tiny graphs have the bits of the reference, on every path."""

from __future__ import annotations

import math

import pytest
import torch
from tests.ops.aggregate.cases import EDGES, EXPONENTS, Inputs, graph

from normplace import UsageError
from normplace.ops import softmax_aggregate
from normplace.ops.aggregate import reference, small
from normplace.ops.aggregate.neighbours import CSRGraph, Neighbours
from normplace.ops.aggregate.reference import AggregateInputs, AggregateSpec

STAR = torch.stack([torch.arange(100) % 13, torch.zeros(100, dtype=torch.long)])
CASES = {
    "hub": graph(),
    "every node": torch.cat([graph(), torch.arange(13).expand(2, 13)], 1),
    "one edge each": torch.stack([torch.arange(13).flip(0), torch.arange(13)]),
    "star": STAR,
}


def assert_same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.dtype == b[name].dtype
        assert torch.equal(value, b[name]), f"{name} differs by {(value - b[name]).abs().max()}"


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("kind", "exponent"), EXPONENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients_have_the_bits_of_the_reference(kind, exponent, edge, dtype):
    for edge_index in CASES.values():
        case = Inputs(kind, exponent, edge, edge_index, dtype=dtype)
        assert_same_bits(case.results("small"), case.results("reference"))


@pytest.mark.parametrize("exponent", [0.0, 1.0, -2.0, math.inf, -math.inf])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("relu", [True, False])
def test_messages_that_are_not_finite_give_the_values_of_the_reference(exponent, bad, relu):
    x = torch.randn(13, 4, generator=torch.Generator().manual_seed(0))
    x[2, 1], x[5, 2] = bad, -2.0
    inputs, spec = AggregateInputs(x, torch.tensor(exponent)), AggregateSpec(relu=relu)
    csr = CSRGraph.of(Neighbours(graph(hub=False), 13).tensors)
    y, k = reference.forward(inputs, csr, spec)
    for actual, expected in zip(small.forward(inputs, csr, spec), (y, k), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_inference_gives_the_value_of_training():
    x, terms = torch.randn(13, 5), torch.randn(70, 5)
    for temperature in (0.0, 1.0, math.inf):
        trained = softmax_aggregate(x.clone().requires_grad_(), graph(), temperature, terms, relu=True)
        with torch.no_grad():
            assert torch.equal(softmax_aggregate(x, graph(), temperature, terms, relu=True), trained)


def test_one_temperature_for_each_channel_raises():
    with pytest.raises(UsageError, match="needs one temperature or power for all channels"):
        softmax_aggregate(torch.ones(2, 3), torch.tensor([[0], [1]]), torch.ones(3), backend="small")
