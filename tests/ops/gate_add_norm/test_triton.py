"""The GPU kernels: in Triton's interpreter in a subprocess, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.ops.gate_add_norm.gates import GateCase, variants
from tests.ops.kernels import agree_when_interpreted, needs_gpu

from normplace.ops import gate_add_norm


def test_every_kernel_agrees_in_the_interpreter():
    agree_when_interpreted("tests.ops.gate_add_norm.interpreted")


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_variant_on_a_gpu(dtype):
    for shape in ((3, 37, 320), (2, 3, 5, 1152)):
        for case in variants(shape=shape, dtype=dtype, device="cuda"):
            case.compare("triton")


@needs_gpu
@pytest.mark.parametrize("width", [1, 3, 5, 64, 127, 257, 512, 768, 1024, 1152, 1536, 2304, 3072, 4096, 5120, 8192])
def test_every_width_on_a_gpu(width):
    for batch, tokens in ((1, 1), (7, 3), (2, 1000), (300, 2)):
        # Of a thousand rows of three features some are nearly constant, and their norms magnify any rounding.
        if width > 3 or batch * tokens < 100:
            GateCase("layer", (batch, tokens, width), device="cuda").compare("triton")
            GateCase("rms", (batch, tokens, width), affine=True, device="cuda").compare("triton")
    if width > 3:
        GateCase("layer", (5, 500, width), torch.bfloat16, affine=True, device="cuda").compare("triton")


@needs_gpu
@pytest.mark.parametrize("y_dtype", [None, torch.float32])
def test_a_float32_stream_with_a_branch_in_half_precision_on_a_gpu(y_dtype):
    options = {"x_dtype": torch.float32, "y_dtype": y_dtype, "device": "cuda"}
    for case in variants(shape=(4, 100, 1152), dtype=torch.bfloat16, **options):
        case.compare("triton")


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_after_every_operator_gives_the_bits_of_separate_operators_on_a_gpu(dtype):
    case = GateCase("layer", (8, 256, 1152), dtype, rounding="result", device="cuda")
    results, expected = case.results("triton"), case.define(**case.tensors)
    assert torch.equal(results["stream"], expected[0])
    # The order of the sums in the norm differs, and some of its results are rounded to a neighbour.
    assert (results["y"] != expected[1]).double().mean() < 0.01


@needs_gpu
def test_layout_and_tracing_on_a_gpu():
    wide = torch.randn(6, 50, 140, device="cuda")
    apart, factor = wide.transpose(0, 1)[..., 1:130], torch.randn(50, 3 * 129, device="cuda")[:, 129:258]
    once = gate_add_norm(apart, apart.flip(0), gate=factor, shift=factor, backend="triton")
    copies = (tensor.contiguous() for tensor in (apart, apart.flip(0), factor))
    x, f, gate = copies
    again = gate_add_norm(x, f, gate=gate, shift=gate, backend="triton")
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    GateCase("layer", (4, 100, 512), device="cuda").compare(
        "triton", wrap=lambda call: torch.compile(call, fullgraph=True)
    )


@needs_gpu
def test_results_on_a_gpu_are_bit_identical():
    case = GateCase("layer", (16, 700, 1152), torch.bfloat16, affine=True, device="cuda")
    first, second = case.results("triton"), case.results("triton")
    assert all(torch.equal(first[name], second[name]) for name in first)


@needs_gpu
def test_launches_with_other_sizes_are_distinguished_on_a_gpu():
    for batch, tokens in ((4, 16), (1, 64), (64, 1), (2, 17), (3, 1), (16, 4)):
        GateCase("layer", (batch, tokens, 64), device="cuda").compare("triton")
        GateCase("layer", (batch, tokens, 64), leading=0, device="cuda").compare("triton")
