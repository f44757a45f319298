"""Gate, add, norm and modulation in plain PyTorch against their definition in float64."""

from __future__ import annotations

import pytest
import torch
from tests.ops.gate_add_norm.gates import FACTORS, GateCase, variants

from normplace.ops import gate_add_norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_its_definition(dtype):
    for case in variants(dtype=dtype):
        case.compare()


@pytest.mark.parametrize("y_dtype", [None, torch.float32])
def test_a_float32_stream_with_a_branch_in_half_precision(y_dtype):
    for case in variants(dtype=torch.bfloat16, x_dtype=torch.float32, y_dtype=y_dtype):
        case.compare()


@pytest.mark.parametrize("norm", ["layer", "rms", None])
def test_first_and_second_derivatives_by_finite_differences(norm):
    case = GateCase(norm, (2, 2, 3), torch.float64, affine=True)
    names, leaves = list(case.tensors), list(case.leaves().values())

    def call(*tensors):
        return gate_add_norm(**dict(zip(names, tensors, strict=True)), **case.options(), backend="reference")

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_after_every_operator_gives_the_bits_of_separate_operators(dtype):
    for affine in (False, True):
        case = GateCase("layer", (4, 16, 48), dtype, affine=affine, rounding="result")
        results, expected = case.results(), case.define(**case.tensors)
        assert torch.equal(results["stream"], expected[0]) and torch.equal(results["y"], expected[1])
        case.rounding = "once"
        assert not torch.equal(case.results()["y"], expected[1])


def test_factors_in_half_precision_are_rounded_next_to_a_float32_stream():
    case = GateCase("layer", (4, 16, 48), torch.bfloat16, torch.float32, torch.float32, rounding="result")
    results, expected = case.results(), case.define(**case.tensors)
    assert torch.equal(results["stream"], expected[0])
    torch.testing.assert_close(results["y"], expected[1], rtol=1e-6, atol=1e-6)
    case.rounding = "once"
    assert (case.results()["y"] - expected[1]).abs().max() > 1e-3


def test_rows_in_any_layout_and_any_number():
    wide = torch.randn(6, 5, 14, generator=torch.Generator().manual_seed(1))
    apart = wide.transpose(0, 1)[..., 1:13]
    factor = wide[:5, 0, :12].t().contiguous().t()
    once = gate_add_norm(apart, apart.flip(0), gate=factor, scale=factor)
    again = gate_add_norm(apart.contiguous(), apart.flip(0).contiguous(), gate=factor[:, None], scale=factor[:, None])
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    for shape in ((0, 4, 12), (3, 0, 12), (12,)):
        x, f, gate = (torch.ones(size, requires_grad=True) for size in (shape, shape, (*shape[:-2], 12)))
        stream, y = gate_add_norm(x, f, gate=gate)
        assert stream.shape == y.shape == torch.Size(shape)
        (stream.sum() + y.sum()).backward()
        assert gate.grad.shape == gate.shape


def test_factors_that_distinguish_different_dimensions():
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 3, 4), (2, 3, 4), (4,), (2, 4), (2, 3, 4))
    x, f, gate, scale, shift = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    leaves = [tensor.requires_grad_() for tensor in (gate, scale, shift)]
    results = gate_add_norm(x, f, gate=gate, scale=scale, shift=shift, eps=0.1)
    stream = x + gate * f
    y = torch.nn.functional.layer_norm(stream, (4,), None, None, 0.1) * (1 + scale[:, None]) + shift
    for one, other in zip(results, (stream, y), strict=True):
        torch.testing.assert_close(one, other)
    gradients = [torch.autograd.grad(value.square().sum(), leaves) for value in (results[1], y)]
    torch.testing.assert_close(*gradients)


def test_without_a_branch_the_stream_is_x_and_without_a_norm_y_is_the_stream():
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    stream, y = gate_add_norm(x, scale=torch.ones(2, 4))
    assert stream is x and torch.allclose(y, 2 * torch.nn.functional.layer_norm(x, (4,), eps=1e-6), atol=1e-6)
    stream, y = gate_add_norm(x, x, gate=torch.ones(2, 4), norm=None)
    assert y is stream


def test_every_factor_has_a_gradient_for_each_sample():
    results = GateCase().results()
    assert all(results[f"gradient of {name}"].shape == (3, 12) for name in FACTORS)
