"""The GPU kernels: in Triton's interpreter in a subprocess, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.ops.aggregate.cases import EDGES, EXPONENTS, Inputs, graph
from tests.ops.kernels import agree_when_interpreted, needs_gpu

from normplace.ops import Neighbours, powermean_aggregate, softmax_aggregate


def test_every_kernel_agrees_in_the_interpreter():
    agree_when_interpreted("tests.ops.aggregate.interpreted")


@needs_gpu
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("kind", "exponent"), EXPONENTS)
def test_equals_brute_force_on_a_gpu(kind, exponent, edge):
    Inputs(kind, exponent, edge, device="cuda").compare("triton", 1e-4)
    Inputs(kind, exponent, edge, channels=200, device="cuda").compare("triton", 1e-4)
    Inputs(kind, exponent, edge, dtype=torch.float64, device="cuda").compare("triton", 1e-8)


@needs_gpu
def test_results_on_a_gpu_are_bit_identical():
    edges = graph(300, 300, 20_000)
    case = Inputs("softmax", 1.5, "linear", edge_index=edges, num_src=300, num_dst=300, channels=64, device="cuda")
    first, second = case.results(), case.results()
    assert all(torch.equal(first[name], second[name]) for name in first)


@needs_gpu
@pytest.mark.parametrize("kind", ["softmax", "power"])
def test_one_exponent_for_each_channel_on_a_gpu(kind):
    run = softmax_aggregate if kind == "softmax" else powermean_aggregate
    edges = Neighbours(graph(3000, 3000, 90_000), 3000)
    x = torch.rand(3000, 200, dtype=torch.float64)
    results = []
    for device, backend in (("cuda", "triton"), ("cpu", "reference")):
        leaf, t = (tensor.to(device).requires_grad_() for tensor in (x, torch.linspace(-2, 3, 200).double()))
        y = run(leaf, edges.to(device), t, relu=True, eps=1e-2, backend=backend)
        y.square().sum().backward()
        results.append([tensor.detach().cpu() for tensor in (y, leaf.grad, t.grad)])
    # Relative to the largest entry: sums of up to 90,000 terms in float64, the last over all edges.
    for actual, expected in zip(*results, strict=True):
        assert (actual - expected).abs().max() <= 1e-9 * expected.abs().max()
