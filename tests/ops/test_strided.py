"""Kernels read tensors with the negative bit and in every memory layout as PyTorch does."""

from __future__ import annotations

import pytest
import torch
from tests.ops.kernels import agree_when_interpreted, needs_gpu

from normplace.ops import softmax_aggregate


def test_the_kernels_in_the_interpreter():
    agree_when_interpreted("tests.ops.strided_interpreted")


@needs_gpu
def test_the_kernels_on_a_gpu():
    from tests.ops import strided_interpreted

    strided_interpreted.main("cuda")


def test_the_compiled_kernels_of_a_cpu():
    pytest.importorskip("numba")
    edges, x = torch.tensor([[0, 1, 2], [1, 1, 0]]), torch.rand(3, 2, generator=torch.Generator().manual_seed(0))
    negative, seed = torch._neg_view(x.neg()).requires_grad_(), torch._neg_view(torch.ones(3, 2))
    y = softmax_aggregate(negative, edges, backend="numba")
    torch.testing.assert_close(y, softmax_aggregate(x, edges, backend="reference"))
    (gradient,) = torch.autograd.grad(y, negative, seed)
    plain = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(softmax_aggregate(plain, edges, backend="reference"), plain, -torch.ones(3, 2))
    torch.testing.assert_close(gradient, expected)
