"""Every branch of the kernels on a CPU; test_triton.py runs it in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)
from tests.ops.relation.cases import Case, cancelling, distant, kinked

from normplace.ops.launch import clear_plans
from normplace.ops.relation import layouts, op


def shrink() -> None:
    """Use tiles so small that a few rows need several of them."""
    layouts.SCAN_FORWARD = layouts.ScanTile(elements=16, warps=4, chunk=4)
    layouts.SCAN_SUMS = layouts.ScanTile(elements=8, warps=4)
    layouts.SCAN_BACKWARD = layouts.ScanTile(elements=16, warps=4, chunk=4)
    layouts.SCAN_SLOTS, layouts.SCAN_SLOT_WIDTH = 2, 4
    tile = layouts.PairTile(rows=4, cols=4, warps=4, unroll=2)
    layouts.PAIR_FORWARD = layouts.PAIR_QUERIES = layouts.PAIR_KEYS = tile
    layouts.PAIR_WIDE_QUERIES = dataclasses.replace(tile, cols=8)
    layouts.PAIR_MIN_SPLIT = 3
    layouts.PAIR_SCALES = layouts.PairTile(rows=8, cols=4, warps=4)
    layouts.PAIR_THROUGH_SCALE = layouts.PAIR_THROUGH_FLOAT32_SCALE = layouts.PairTile(8, 4, warps=4, unroll=4)
    layouts.PAIR_HALF_STEP = 4
    layouts.PAIR_STATISTICS = 16
    layouts.PAIR_SCRATCH = 100  # one sequence at a time


def half_precision_before_it_is_rounded() -> None:
    """Products of rows, or of centred rows if means are large or pairs cancel, are exact."""
    options = ("joint", "exp", True, 1e-5, True, 1, True)  # a post-norm, which would follow, is given single precision
    for dtype, offset in itertools.product((torch.bfloat16, torch.float16), (0.0, 9.0)):
        case = (Case if offset else cancelling)(shape=(1, 10, 12), dtype=dtype)
        a, b = case.a + offset, case.b + offset / 2
        found = op.PAIRS.operator(a, b, None, *options, "triton").double()
        truth = op.PAIRS.operator(a.double(), b.double(), None, *options, "reference")
        assert ((found - truth).abs() <= 1e-5 * truth.abs().amax(-1, keepdim=True)).all(), (dtype, offset)


def main() -> None:
    """Compare with the brute force; a mismatch raises an AssertionError."""
    shrink()
    small = (1, 7, 6)
    for post_norm, causal in ((False, True), (True, False), (True, True)):
        Case(small, "separate", post_norm=post_norm, causal=causal, heads=2, masked=causal).compare("scan", "triton")
        Case(small, "none", post_norm=post_norm, causal=causal, masked=not causal).compare("scan", "triton")
    late = Case(small, "none", post_norm=True, masked=True)
    late.mask[:, :3] = False  # rows before which there is no sum, and so no largest exponent
    late.compare("scan", "triton")
    Case(small, "none", post_norm=True, scale=40.0).compare("scan", "triton", 1e-4, 1e-3)
    Case((2, 3, 5), "separate", mean=False, eps=0.0).compare("scan", "triton")
    distant(shape=(1, 7, 6), heads=2).compare("scan", "triton")
    cancelling(shape=(2, 9, 6), eps=0.0).compare("pairwise", "triton", of_gradients=2e-4)
    kinked(shape=(2, 9, 6)).compare("pairwise", "triton", of_gradients=2e-4)
    Case(small, heads=2, causal=False, masked=True).compare("pairwise", "triton")
    # Of two channels, some pairs nearly cancel and leave a mean that is large beside them.
    Case((2, 9, 6), heads=3).compare("pairwise", "triton")
    Case(small, activation="gelu", masked=True).compare("pairwise", "triton")
    Case(small, "none", "elu", mean=False).compare("pairwise", "triton")
    Case(small, "separate", "relu", causal=False, post_norm=True).compare("pairwise", "triton")
    half_precision_before_it_is_rounded()
    for dtype, size in itertools.product((torch.float32, torch.bfloat16), (1e25, 1e30)):
        large = Case(small, dtype=dtype, scale=size)  # squares overflow, which must not look like a norm of zero
        assert all(value.isnan().all() for value in large.results("pairwise", "triton").values())
        large.norm = "separate"
        assert all(value.isnan().all() for value in large.results("scan", "triton").values())
    # The layout of long sequences.
    layouts.PAIR_CONCURRENT_WARPS = 0
    clear_plans()
    Case(small, masked=True).compare("pairwise", "triton")
    Case(small, heads=2, causal=False).compare("pairwise", "triton")
    for name, kind in (("scan", "separate"), ("pairwise", "joint")):
        half = Case(small, kind, dtype=torch.bfloat16)
        found, expected = half.results(name, "triton"), half.expected()
        # The interpreter cuts digits off where a GPU rounds.
        assert ((found["y"].double() - expected["y"]).abs() <= 2.0**-7 * 1.01 * expected["y"].abs()).all(), name
        for of in ("a", "b"):
            error = (found[of].double() - expected[of]).abs().max() / expected[of].abs().max()
            assert error <= 2.0**-6, f"{name}: the gradient of {of} is wrong by {error:.1e}"
    print("every kernel agrees")


if __name__ == "__main__":
    main()
