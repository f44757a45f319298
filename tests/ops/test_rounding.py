"""Means and roots inside kernels, in the interpreter and on a GPU."""

from __future__ import annotations

from tests.ops.kernels import agree_when_interpreted, needs_gpu


def test_means_and_roots_are_accurate_in_the_interpreter():
    agree_when_interpreted("tests.ops.rounding_interpreted")


@needs_gpu
def test_means_and_roots_are_accurate_on_a_gpu():
    from tests.ops import rounding_interpreted

    rounding_interpreted.main("cuda")
