"""The GPU kernels: in Triton's interpreter in a subprocess, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.ops.kernels import agree_when_interpreted, needs_gpu
from tests.ops.norm_add_norm.boundary import KINDS, Boundary, variants

from normplace.ops import boundary_backend, norm_add_norm


def test_every_kernel_agrees_in_the_interpreter():
    agree_when_interpreted("tests.ops.norm_add_norm.interpreted")


@needs_gpu
@pytest.mark.parametrize("out_norm", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_variant_on_a_gpu(dtype, out_norm):
    for case in variants(shape=(37, 320), dtype=dtype, device="cuda"):
        if case.out_norm == out_norm:
            case.compare("triton")


@needs_gpu
@pytest.mark.parametrize(
    "width",
    [1, 2, 3, 5, 64, 127, 256, 257, 512, 768, 1021, 1024, 1152, 1536, 2048, 2304, 3001, 3072, 3584, 4096, 5120, 8191,
     8192, 12288, 16381, 16384],
)  # fmt: skip
def test_every_width_on_a_gpu(width):
    # Of a thousand rows of three features some are nearly constant, and their norms magnify any rounding.
    for rows in (1, 7, 1000) if width > 3 else (1, 7):
        Boundary("rms", "rms", shape=(rows, width), device="cuda").compare("triton")
        Boundary("layer", "layer", shape=(rows, width), shifts=True, device="cuda").compare("triton")
    # More tiles are in flight than in single precision, and more rows than programs are walked over.
    half = {"shape": (2500, width), "dtype": torch.bfloat16, "device": "cuda"}
    if width > 3:
        Boundary("rms", "rms", **half).compare("triton")
        Boundary("layer", "layer", shifts=True, **half).compare("triton")


@needs_gpu
def test_many_rows_and_other_types_on_a_gpu():
    Boundary("layer", "rms", shape=(100_003, 200), shifts=True, scales=True, device="cuda").compare("triton")
    options = {"stream_dtype": torch.float32, "parameter_dtype": torch.float32, "device": "cuda"}
    Boundary("rms", "layer", shape=(4, 9, 1024), dtype=torch.bfloat16, **options).compare("triton")
    double = Boundary("rms", "layer", dtype=torch.float64, device="cuda")
    double.compare()
    assert boundary_backend(double.tensors["x"]).backend == "reference"


@needs_gpu
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_rows_far_from_zero_on_a_gpu(kind):
    case = Boundary(kind, kind, (64, 4096), mean=1e4, gains=False, device="cuda")
    stream, y = norm_add_norm(case.tensors["x"], case.tensors["f"], **case.options(), backend="triton")
    truth = stream.double() - (stream.double().mean(1, keepdim=True) if kind == "layer" else 0)
    truth = truth / (truth.square().mean(1, keepdim=True) + 1e-5).sqrt()
    assert (y.double() - truth).abs().max() < 1e-3


@needs_gpu
def test_the_layout_of_rows_does_not_matter_on_a_gpu():
    wide = torch.randn(6, 50, 140, device="cuda")
    apart = wide.transpose(0, 1)[..., 1:130]
    found = norm_add_norm(apart, apart.flip(0), backend="triton")
    again = norm_add_norm(apart.contiguous(), apart.flip(0).contiguous(), backend="triton")
    assert torch.equal(found[0], again[0]) and torch.equal(found[1], again[1])


@needs_gpu
def test_launches_with_other_arguments_are_distinguished_on_a_gpu():
    memory = torch.randn(2, 20 * 64 + 8, device="cuda")
    for start, rows, skip in ((0, 16, 2), (0, 17, 2.0), (0, 1, 2.0), (1, 16, 2.0), (0, 16, 0.5), (4, 3, 2)):
        x, f = (part[start : start + rows * 64].view(rows, 64).requires_grad_() for part in memory.clone())
        found = norm_add_norm(x, f, skip_scale=skip, backend="triton")
        expected = norm_add_norm(x.double(), f.double(), skip_scale=skip)
        for got, truth in zip(found, expected, strict=True):
            torch.testing.assert_close(got.double(), truth, rtol=1e-5, atol=1e-5)
        gradients = (torch.autograd.grad(results[1].sum(), (x, f)) for results in (found, expected))
        for got, truth in zip(*gradients, strict=True):
            torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_branch_that_is_rounded_after_its_gain_is_added_as_rounded_on_a_gpu(dtype):
    """A product and a sum that the compiler contracts to one operation would skip the rounding between them."""
    case = Boundary("rms", "rms", shape=(2048, 1152), dtype=dtype, device="cuda")
    x, f, gain = case.tensors["x"], case.tensors["f"], case.tensors["out_weight"]
    stream, _ = norm_add_norm(x, f, out_weight=gain, out_eps=1e-5, out_rounding="gain", backend="triton")
    wide = f.float()
    rows = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(dtype)
    # The order of the sum of squares differs, and some standardised rows are rounded to a neighbour.
    assert (stream != x + gain * rows).double().mean() < 0.01


@needs_gpu
def test_results_on_a_gpu_are_bit_identical():
    case = Boundary("layer", "layer", shape=(5000, 1024), shifts=True, branch="scalar", device="cuda")
    first, second = case.results("triton"), case.results("triton")
    assert all(torch.equal(first[name], second[name]) for name in first)


@needs_gpu
@pytest.mark.parametrize("options", [{}, {"shifts": True, "scales": True, "branch": "scalar", "dropout": 0.2}])
def test_compiled_on_a_gpu(options):
    case = Boundary("layer", "rms", shape=(100, 512), device="cuda", **options)
    case.compare("triton", wrap=lambda call: torch.compile(call, fullgraph=True))


@needs_gpu
def test_second_derivatives_on_a_gpu():
    x, f = (torch.randn(3, 8, device="cuda", requires_grad=True) for _ in range(2))
    stream, y = norm_add_norm(x, f, backend="triton")
    (grad,) = torch.autograd.grad((y**2 * stream).sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(grad.square().sum(), f)
    x64, f64 = (t.detach().double().requires_grad_() for t in (x, f))
    stream, y = norm_add_norm(x64, f64)
    (grad,) = torch.autograd.grad((y**2 * stream).sum(), x64, create_graph=True)
    (expected,) = torch.autograd.grad(grad.square().sum(), f64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
