"""Generalized aggregation on a GPU: one pass over the edges, no temporary of their size, no atomics.

Rows longer than a piece are cut; their parts are merged by a second, small kernel, so a hub costs no more than the same
number of edges elsewhere. The backward pass walks the edges that leave each node.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from normplace.ops.aggregate import triton_kernels
from normplace.ops.aggregate.neighbours import Half
from normplace.ops.aggregate.reference import Grads, Needs, Rule

# Launched with options and numbers that their Python signatures do not show.
kernels: Any = triton_kernels
MODES = {"none": 0, "dense": 1, "linear": 2, "table": 3}


@dataclass(frozen=True)
class Tile:
    """How a kernel is laid out."""

    elements: int
    """Pieces side by side times channels, in one program."""
    unroll: int
    """Edges of each piece whose loads are issued together."""
    warps: int

    def pieces(self, width: int) -> int:
        """Pieces side by side where a program has ``width`` channels."""
        return max(1, self.elements // width)


# The fastest on an H200 at 128 channels of 2.3 million edges. One row a program, four channels a thread: wider tiles
# spread the edges at once over threads, which then wait for each other at every step.
FORWARD = Tile(elements=128, unroll=4, warps=1)
BACKWARD = Tile(elements=128, unroll=1, warps=2)
# A program that sums gradients of weights keeps K × D of them in registers, so it walks one piece at a time, and there
# are only so many programs.
BACKWARD_WEIGHT = Tile(elements=1, unroll=2, warps=1)
WEIGHT_PROGRAMS = 132 * 16
# Parts of a cut row that are merged at a time.
MERGE_SLOTS = 16


def _real(dtype: torch.dtype) -> tuple[torch.dtype, Any]:
    """The dtype sums are kept in, for PyTorch and for Triton."""
    return (torch.float64, tl.float64) if dtype == torch.float64 else (torch.float32, tl.float32)


def _width(channels: int) -> int:
    return min(128, triton.next_power_of_2(channels))


def _slots(half: Half, piece: int) -> int:
    return 2 * len(half.indices) // piece


def forward(
    x: Tensor, exponent: Tensor, edge: Tensor | None, weight: Tensor | None, arriving: Half, rule: Rule, piece: int
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    kept, real = _real(x.dtype)
    channels, width = x.shape[1], _width(x.shape[1])
    y = torch.empty(len(arriving.indptr) - 1, channels, dtype=kept, device=x.device)
    k = torch.empty_like(y)
    slots, num_pieces, num_hubs = _slots(arriving, piece), arriving.pieces.shape[1], arriving.hubs.shape[1]
    part = torch.empty(3, slots, channels, dtype=kept, device=x.device)
    power, tile = rule.kind == "power", FORWARD
    features = 0 if weight is None else len(weight)
    pieces = tile.pieces(width)
    kernels.forward[(triton.cdiv(num_pieces, pieces), triton.cdiv(channels, width))](
        x, exponent, edge, weight, arriving.indices, arriving.edges, arriving.pieces, num_pieces, y, k, *part,
        channels, features, EPS=rule.eps, POWER=power, EDGE=MODES[rule.edge], RELU=rule.relu, PIECES=pieces,
        WIDTH=width, UNROLL=tile.unroll, real=real, num_warps=tile.warps,
    )  # fmt: skip
    if num_hubs:
        kernels.merge_forward[(num_hubs, triton.cdiv(channels, width))](
            exponent, arriving.indptr, arriving.hubs, num_hubs, *part, y, k, channels, piece,
            POWER=power, SLOTS=MERGE_SLOTS, WIDTH=width, real=real,
        )  # fmt: skip
    return y, k


def backward(
    grad: Tensor,
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    arriving: Half,
    leaving: Half,
    y: Tensor,
    k: Tensor,
    rule: Rule,
    needs: Needs,
    piece: int,
) -> Grads:
    """As the reference."""
    kept, real = _real(x.dtype)
    channels, width = x.shape[1], _width(x.shape[1])
    slots, num_pieces, num_hubs = _slots(leaving, piece), leaving.pieces.shape[1], leaving.hubs.shape[1]
    tile = BACKWARD_WEIGHT if needs.weight else BACKWARD
    pieces, spans = tile.pieces(width), triton.cdiv(channels, width)
    groups = triton.cdiv(num_pieces, pieces)
    programs = min(groups, WEIGHT_PROGRAMS) if needs.weight else groups
    features = 0 if weight is None else len(weight)

    def scratch(*shape: int, wanted: bool = True) -> Tensor | None:
        return torch.empty(shape, dtype=kept, device=x.device) if wanted else None

    dx, part = torch.empty_like(x), scratch(slots, channels)
    d_edge = torch.empty_like(edge) if needs.edge and edge is not None else None
    d_weight = scratch(programs, features, channels, wanted=needs.weight)
    d_exponent = scratch(programs * spans, wanted=needs.exponent)
    kernels.backward[(programs, spans)](
        grad, x, exponent, edge, weight, leaving.indices, leaving.edges, arriving.indptr, leaving.pieces, num_pieces,
        y, k, dx, part, d_edge, d_weight, d_exponent, channels, features, EPS=rule.eps, POWER=rule.kind == "power",
        EDGE=MODES[rule.edge], RELU=rule.relu, SEMI=rule.semi, NEED_EXPONENT=needs.exponent, NEED_EDGE=needs.edge,
        NEED_WEIGHT=needs.weight, PIECES=pieces, WIDTH=width, UNROLL=tile.unroll,
        FEATURES=triton.next_power_of_2(max(1, features)), real=real, num_warps=tile.warps,
    )  # fmt: skip
    if num_hubs:
        kernels.merge_backward[(num_hubs, spans)](
            leaving.hubs, num_hubs, part, dx, channels, SLOTS=MERGE_SLOTS, WIDTH=width, real=real
        )
    return Grads(
        dx,
        None if d_exponent is None else d_exponent.sum(),
        d_edge,
        None if d_weight is None or weight is None else d_weight.sum(0).to(weight.dtype),
    )
