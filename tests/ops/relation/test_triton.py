"""The GPU kernels: in Triton's interpreter in a subprocess, and on a GPU."""

from __future__ import annotations

import os

import pytest
import torch
from tests.ops.kernels import agree_when_interpreted, needs_gpu
from tests.ops.relation.cases import Case, cancelling, distant, kinked


def test_every_kernel_agrees_in_the_interpreter():
    agree_when_interpreted("tests.ops.relation.interpreted")


def test_offsets_of_pairs_beyond_32_bits():
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 12e9:
        pytest.skip("reserves 10 GB of memory, of which it writes little")
    agree_when_interpreted("tests.ops.relation.long_interpreted")


@needs_gpu
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 130, 24), (3, 301, 192), (1, 77, 1000)])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_brute_force_on_a_gpu(shape, causal):
    for post_norm, masked in ((False, False), (True, True)):
        options = {"causal": causal, "post_norm": post_norm, "masked": masked, "device": "cuda"}
        Case(shape, "separate", **options).compare("scan", "triton")
        Case(shape, "none", **options).compare("scan", "triton")
        Case(shape, **options).compare("pairwise", "triton")
        # Of millions of pairs some are within rounding of 0, where the slope of a rectifier jumps.
        few = shape[0] * shape[1] ** 2 * shape[2] < 10**6
        for activation in ("gelu", "elu", *(["relu"] if few else [])):
            Case(shape, "separate", activation, **options).compare("pairwise", "triton")


@needs_gpu
def test_heads_and_cancelling_pairs_on_a_gpu():
    Case((2, 90, 96), heads=4, device="cuda").compare("pairwise", "triton")
    Case((2, 90, 96), "separate", heads=3, post_norm=True, device="cuda").compare("scan", "triton")
    for eps in (1e-5, 0.0):
        cancelling(shape=(2, 140, 96), eps=eps, device="cuda").compare("pairwise", "triton", of_gradients=2e-4)
        kinked(shape=(1, 10, 11), eps=eps, device="cuda").compare("pairwise", "triton", of_gradients=2e-4)


@needs_gpu
@pytest.mark.parametrize("causal", [False, True])
def test_constant_rows_and_large_means_on_a_gpu(causal):
    distant(shape=(2, 70, 96), heads=3, causal=causal, device="cuda").compare("scan", "triton")


@needs_gpu
def test_results_on_a_gpu_are_bit_identical():
    case = Case((2, 300, 64), device="cuda")
    first, second = case.results("pairwise"), case.results("pairwise")
    assert all(torch.equal(first[name], second[name]) for name in first)
