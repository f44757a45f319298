"""Layouts of the aggregation's Triton kernels; see :mod:`normplace.ops.layouts` for where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AggregateTile:
    """Work of one program."""

    elements: int
    """Pieces of rows times channels."""
    unroll: int
    """Edges of each piece whose loads are issued together."""
    warps: int

    def pieces(self, width: int) -> int:
        """Pieces of rows in a program with ``width`` channels."""
        return max(1, self.elements // width)


# Tuned at 128 channels and 2.3 million edges. One row a program, four channels a thread: in wider tiles the edges are
# spread over threads, which then wait for each other at every step.
FORWARD = AggregateTile(elements=128, unroll=4, warps=1)
BACKWARD = AggregateTile(elements=128, unroll=1, warps=2)
# A program that sums gradients of weights keeps K × D sums in registers, so it walks one piece at a time, and the
# number of programs is limited.
BACKWARD_WEIGHT = AggregateTile(elements=1, unroll=2, warps=1)
WEIGHT_PROGRAMS = 132 * 16
# Widest span of channels of a program.
MAX_WIDTH = 128
# Partial sums of a long row that are merged at a time.
MERGE_SLOTS = 16
