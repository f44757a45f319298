"""Kernels read tensors in every memory layout as PyTorch does."""

from __future__ import annotations

from tests.ops.kernels import agree_when_interpreted, needs_gpu


def test_the_kernels_in_the_interpreter():
    agree_when_interpreted("tests.ops.strided_interpreted")


@needs_gpu
def test_the_kernels_on_a_gpu():
    from tests.ops import strided_interpreted

    strided_interpreted.main("cuda")
