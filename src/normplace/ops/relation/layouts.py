"""Layouts of the relations' Triton kernels; see :mod:`normplace.ops.layouts` for where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

MAX_WARPS = 16


@dataclass(frozen=True)
class ScanTile:
    """Work of one program of the scan."""

    elements: int
    """Rows at a time times channels."""
    warps: int
    chunk: int = 1
    """Rows that a program processes one after the other, if there are enough for all programs that run at once."""
    stages: int = 1
    """Steps of that loop whose loads are in flight (software pipelining)."""

    def rows(self, length: int, padded: int) -> int:
        """Rows at a time if a row has ``padded`` channels."""
        return max(1, min(self.elements // padded, triton.next_power_of_2(length)))

    def warps_for(self, elements: int) -> int:
        """Warps of a program with this many elements: more for a row that is wider than the tile."""
        return max(self.warps, min(MAX_WARPS, self.warps * elements // self.elements))


# A row that one warp processes needs no barrier for its sums.
SCAN_SUMS = ScanTile(elements=2048, warps=1)
SCAN_FORWARD = ScanTile(elements=1024, warps=1, chunk=16)
SCAN_BACKWARD = ScanTile(elements=1024, warps=1, chunk=16, stages=2)
# Pipelining slowed the gradient of the keys down.
SCAN_KEY_STAGES = 1
# Programs that run at once, sixteen on each multiprocessor. With chunks of fewer rows, or more chunks of a sequence,
# the second pass over the chunks takes longer than the first one gains.
SCAN_CONCURRENT, SCAN_MIN_CHUNK, SCAN_MAX_CHUNKS = 2048, 4, 1024
# Chunks, and channels of them, that are accumulated at a time, and the warps of that kernel.
SCAN_SLOTS, SCAN_SLOT_WIDTH, SCAN_SLOT_WARPS = 256, 8, 4
# Dtype of q of a row where it is not float32: the gradient that it is summed into is rounded to the same digits.
SCAN_Q_DTYPES = {torch.bfloat16: torch.bfloat16}


@dataclass(frozen=True)
class PairTile:
    """Work of one program of the pairwise kernels."""

    rows: int
    cols: int
    warps: int
    unroll: int = 1
    """Keys or queries whose loads are issued together; in a matrix product, the summed axis of a step."""


PAIR_SCALES = PairTile(rows=64, cols=32, warps=4)
# Channels that one step of a product of half-precision rows sums.
PAIR_HALF_STEP = 64
PAIR_FORWARD = PairTile(rows=16, cols=64, warps=4, unroll=8)
PAIR_QUERIES = PairTile(rows=16, cols=64, warps=4, unroll=8)
# In half precision, if these channels divide a head's: the sum over them takes fewer steps.
PAIR_WIDE_QUERIES = PairTile(rows=16, cols=128, warps=8, unroll=8)
PAIR_KEYS = PairTile(rows=16, cols=64, warps=4, unroll=4)
# In half precision, and in float32, whose products take three times as many registers.
PAIR_THROUGH_SCALE = PairTile(rows=128, cols=64, warps=8, unroll=32)
PAIR_THROUGH_FLOAT32_SCALE = PairTile(rows=16, cols=128, warps=4, unroll=32)
# Elements of the rows whose mean one program computes.
PAIR_STATISTICS = 4096
# Most scales of pairs kept at a time, 1 GiB; at least those of one sequence.
PAIR_SCRATCH = 1 << 28
# Sequences and heads at a time: a grid has at most 65,535 programs along its last axis, two of them for each.
PAIR_MAX_SLICE = 32_767
# Warps that run at once, sixteen on each multiprocessor. With no more than these, the longest program determines the
# time: each program then also takes a short tile, and the summed axis is split to create enough programs.
PAIR_CONCURRENT_WARPS = 2048
PAIR_ENOUGH_WARPS = 8192
# Shortest split, and most elements of all splits together, 16 MiB.
PAIR_MIN_SPLIT = 64
PAIR_MAX_SPLIT_ELEMENTS = 1 << 22
# Elements of one program that adds the splits.
PAIR_SUM_BLOCK = 1024
