"""The norm in one pass against its definition in float64, in plain PyTorch and by the kernels."""

from __future__ import annotations

import pytest
import torch
from tests.ops.feature_norm.norms import NormCase, variants
from tests.ops.kernels import agree_when_interpreted, needs_gpu

from normplace.errors import UsageError
from normplace.ops import feature_norm, norm_add_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_its_definition(dtype):
    for case in variants(dtype=dtype):
        case.compare("reference")


def test_the_composed_backend_equals_the_definition():
    for case in variants():
        case.compare("composed")


def test_every_kernel_agrees_in_the_interpreter():
    agree_when_interpreted("tests.ops.feature_norm.interpreted")


@needs_gpu
@pytest.mark.parametrize("width", [3, 64, 128, 257, 1024, 1536, 4096, 8191, 16384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_variant_on_a_gpu(dtype, width):
    for case in variants(shape=(37, width), dtype=dtype, device="cuda"):
        case.compare("triton")


def llama_norm(x, weight, eps=1e-6):
    """As Hugging Face's Llama computes it, rounded before the gain."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_before_the_gain_gives_the_bits_of_a_norm_that_does(dtype):
    case = NormCase("rms", (64, 48), dtype)
    expected = llama_norm(case.x, case.weight)
    assert torch.equal(feature_norm(case.x, case.weight, rounding="gain"), expected)
    assert not torch.equal(feature_norm(case.x, case.weight), expected)
    f = case.seed
    stream, y = norm_add_norm(
        case.x, f, out_weight=case.weight, in_weight=case.weight, out_rounding="gain", in_rounding="gain"
    )
    assert torch.equal(stream, case.x + llama_norm(f, case.weight))
    assert torch.equal(y, llama_norm(stream, case.weight))


def test_a_norm_that_rounds_its_result_does_so_before_the_add():
    x, f = (torch.randn(64, 48, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (0, 1))
    stream, _ = norm_add_norm(x, f, out_rounding="result", in_norm=None)
    assert torch.equal(stream, x + feature_norm(f))
    assert not torch.equal(norm_add_norm(x, f, in_norm=None)[0], stream)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_float32_gain_gives_a_float32_result(dtype):
    """As Llama's norm with a float32 gain computes it, alone, on the branch and on the stream."""
    case = NormCase("rms", (64, 48), dtype)
    weight, single = case.weight.float(), torch.float32
    expected = llama_norm(case.x, weight)
    assert expected.dtype == single
    assert torch.equal(feature_norm(case.x, weight, rounding="gain", dtype=single), expected)
    options = {"out_weight": weight, "in_weight": weight, "out_rounding": "rows", "in_rounding": "gain"}
    for x in (case.x, case.x.float()):
        stream, y = norm_add_norm(x, case.seed, **options, stream_dtype=single, y_dtype=single)
        assert torch.equal(stream, x + llama_norm(case.seed, weight))
        assert torch.equal(y, llama_norm(stream, weight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_rows_whose_squares_overflow_are_nan(norm, dtype):
    """A reciprocal root of infinity would make them zero."""
    x = (1e25 * torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    y = feature_norm(x, norm=norm, backend="reference")
    assert y.isnan().all()
    assert torch.autograd.grad(y.sum(), x)[0].isnan().all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "batch"}, "norm"),
        ({"rounding": "twice"}, "rounding"),
        ({"eps": -1.0}, "eps"),
        ({"weight": torch.ones(2)}, "3 features"),
        ({"x": torch.ones(2, 0)}, "at least one feature"),
        ({"x": torch.ones(3, dtype=torch.int64)}, "floating-point"),
        ({"backend": "triton"}, "cannot run"),
        ({"backend": "fast"}, "backend"),
        ({"dtype": torch.int64}, "floating-point dtype"),
    ],
)
def test_a_bad_argument_raises(options, words):
    with pytest.raises(UsageError, match=words):
        feature_norm(**({"x": torch.ones(2, 3)} | options))
