"""The boundary in plain PyTorch against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from tests.ops.norm_add_norm.boundary import KINDS, Boundary, keep, variants

from normplace import LayerNorm, RMSNorm
from normplace.ops import norm_add_norm
from normplace.ops.norm_add_norm.reference import dropout_mask


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_its_definition(dtype):
    for case in variants(dtype=dtype):
        case.compare()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_composed_backend_equals_the_definition(dtype):
    for case in variants(dtype=dtype):
        case.compare("composed")


def test_a_float32_stream_of_a_half_precision_network():
    for kinds in (("rms", "rms"), ("layer", "layer"), (None, "rms"), ("rms", None)):
        options = {"stream_dtype": torch.float32, "parameter_dtype": torch.float32}
        Boundary(*kinds, dtype=torch.bfloat16, **options).compare()


@pytest.mark.parametrize("out_norm", KINDS)
@pytest.mark.parametrize("in_norm", KINDS)
def test_first_and_second_derivatives_by_finite_differences(out_norm, in_norm):
    case = Boundary(out_norm, in_norm, (3, 4), torch.float64, shifts=True, scales=True, branch="channel", dropout=0.3)
    names, leaves = list(case.tensors), list(case.leaves().values())

    def call(x, f, *rest):
        return norm_add_norm(x, f, **dict(zip(names[2:], rest, strict=True)), **case.options(), backend="reference")

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize(("kind", "module"), [("layer", LayerNorm), ("rms", RMSNorm)])
def test_equals_the_norm_modules(kind, module):
    case = Boundary(kind, kind, (4, 33))
    out, inner = module(33, eps=1e-6), module(33, eps=1e-5)
    x, f = case.tensors["x"], case.tensors["f"]
    stream, y = norm_add_norm(x, f, out_norm=kind, in_norm=kind, in_eps=1e-5)
    torch.testing.assert_close(stream, x + out(f))
    torch.testing.assert_close(y, inner(stream))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_rows_far_from_zero_keep_their_digits(kind):
    """At mean 1e4 and deviation 1 the spacing of float32 is 1e-3: E[x²] - E[x]² would have no digit left."""
    case = Boundary(kind, kind, (4, 500), mean=1e4, gains=False)
    stream, y = norm_add_norm(case.tensors["x"], case.tensors["f"], **case.options())
    truth = stream.double() - (stream.double().mean(1, keepdim=True) if kind == "layer" else 0)
    truth = truth / (truth.square().mean(1, keepdim=True) + 1e-5).sqrt()
    assert (y.double() - truth).abs().max() < 1e-3


def test_rows_in_any_layout_and_any_number():
    wide = torch.randn(6, 5, 14, generator=torch.Generator().manual_seed(1))
    apart = wide.transpose(0, 1)[..., 1:13]
    stream, y = norm_add_norm(apart, apart.flip(0))
    again, y_again = norm_add_norm(apart.contiguous(), apart.flip(0).contiguous())
    assert torch.equal(stream, again) and torch.equal(y, y_again)
    for shape in ((0, 12), (3, 0, 12), (12,)):
        x, f = (torch.ones(shape, requires_grad=True) for _ in range(2))
        stream, y = norm_add_norm(x, f)
        assert stream.shape == y.shape == torch.Size(shape)
        (2 * stream.sum() + y.sum()).backward()
        assert torch.equal(x.grad, torch.full(shape, 2.0)) or (x.grad - 2).abs().max() < 1e-5


def test_without_a_next_norm_y_is_the_stream():
    x, f = torch.randn(2, 3), torch.randn(2, 3)
    stream, y = norm_add_norm(x, f, in_norm=None)
    assert y is stream


def test_dropout_is_a_function_of_seed_row_and_column():
    for seed in (0, 1, 2**32, 2**62 + 12345):
        mask = dropout_mask(torch.tensor(seed), 40, 50, 0.3)
        assert torch.equal(mask, torch.from_numpy(keep(seed, 40, 50, 0.3)))
    kept = dropout_mask(torch.tensor(3), 1000, 1000, 0.3).double() - 0.7
    deviation = 0.21**0.5
    assert abs(kept.mean()) < 4 * deviation / 1000
    # Neighbours in a row, in a column, and the same place under the next seed are independent: products average to 0.
    other = dropout_mask(torch.tensor(4), 1000, 1000, 0.3).double() - 0.7
    for product in (kept[:, 1:] * kept[:, :-1], kept[1:] * kept[:-1], kept * other):
        assert abs(product.mean()) < 4 * 0.21 / 999
    # So are whole rows and whole columns: their sums spread as those of independent draws.
    for axis in (0, 1):
        assert kept.sum(axis).std() == pytest.approx(deviation * 1000**0.5, rel=0.1)
