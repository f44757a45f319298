"""Pairs at offsets beyond 2^31; test_triton.py runs it in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)
from tests.ops.relation.cases import Case

from normplace.ops.relation import layouts
from normplace.ops.relation.pair_plan import PairPlan

LENGTH = 18
# The scales of the last query start at 2^31 and beyond. Memory that is not written takes no space.
STRIDE = 2**31 // (LENGTH - 2)


def main() -> None:
    """Compare with the brute force; a mismatch raises an AssertionError."""
    PairPlan.stride = STRIDE  # pyright: ignore[reportAttributeAccessIssue]
    layouts.PAIR_SCRATCH = 1
    Case((1, LENGTH, 4)).compare("pairwise", "triton")
    print("every kernel agrees")


if __name__ == "__main__":
    main()
