"""Generalized aggregation on a GPU: one pass over the edges, no temporary of their size, no atomics.

Rows longer than a piece are split; a second, small kernel merges their partial sums, so a hub costs no more than the
same number of edges elsewhere. The backward pass follows the edges that leave each node.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from normplace.ops.aggregate import layouts, triton_kernels
from normplace.ops.aggregate.neighbours import CSRDirection, CSRGraph
from normplace.ops.aggregate.reference import AggregateGradMask, AggregateGrads, AggregateInputs, AggregateSpec
from normplace.ops.features import compute_dtype

# Typed as Any because launches pass options and numbers that the Python signatures do not show.
kernels: Any = triton_kernels
EDGE_MODES = {"none": 0, "dense": 1, "linear": 2, "table": 3}
TRITON_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _width(channels: int) -> int:
    return min(layouts.MAX_WIDTH, triton.next_power_of_2(channels))


def _num_slots(direction: CSRDirection, piece: int) -> int:
    return 2 * direction.num_edges // piece


def forward(inputs: AggregateInputs, graph: CSRGraph, spec: AggregateSpec) -> tuple[Tensor, Tensor]:
    """See :func:`reference.forward`."""
    x, exponent, edge, weight = inputs
    arriving, dtype = graph.arriving, compute_dtype(x.dtype)
    channels, width = x.shape[1], _width(x.shape[1])
    y = torch.empty(arriving.num_rows, channels, dtype=dtype, device=x.device)
    k = torch.empty_like(y)
    num_pieces, num_hubs = arriving.pieces.shape[1], arriving.hubs.shape[1]
    partial = torch.empty(3, _num_slots(arriving, spec.piece), channels, dtype=dtype, device=x.device)
    power, tile = spec.kind == "power", layouts.FORWARD
    features = 0 if weight is None else len(weight)
    pieces = tile.pieces(width)
    kernels.forward[(triton.cdiv(num_pieces, pieces), triton.cdiv(channels, width))](
        x, exponent, edge, weight, arriving.indices, arriving.edges, arriving.pieces, num_pieces, y, k, *partial,
        channels, features, EPS=spec.eps, POWER=power, EDGE=EDGE_MODES[spec.edge_kind], RELU=spec.relu, PIECES=pieces,
        WIDTH=width, UNROLL=tile.unroll, PER_CHANNEL=exponent.dim() == 1, real=TRITON_DTYPES[dtype],
        num_warps=tile.warps,
    )  # fmt: skip
    if num_hubs:
        kernels.merge_forward[(num_hubs, triton.cdiv(channels, width))](
            exponent, arriving.indptr, arriving.hubs, num_hubs, *partial, y, k, channels, spec.piece,
            POWER=power, SLOTS=layouts.MERGE_SLOTS, WIDTH=width, PER_CHANNEL=exponent.dim() == 1,
            real=TRITON_DTYPES[dtype],
        )  # fmt: skip
    return y, k


def backward(
    grad: Tensor,
    inputs: AggregateInputs,
    graph: CSRGraph,
    y: Tensor,
    k: Tensor,
    spec: AggregateSpec,
    needs: AggregateGradMask,
) -> AggregateGrads:
    """See :func:`reference.backward`."""
    x, exponent, edge, weight = inputs
    leaving, dtype = graph.leaving, compute_dtype(x.dtype)
    channels, width = x.shape[1], _width(x.shape[1])
    num_pieces, num_hubs = leaving.pieces.shape[1], leaving.hubs.shape[1]
    tile = layouts.BACKWARD_WEIGHT if needs.weight else layouts.BACKWARD
    pieces, spans = tile.pieces(width), triton.cdiv(channels, width)
    groups = triton.cdiv(num_pieces, pieces)
    per_channel = exponent.dim() == 1
    # A row of sums for each program: of the weights, or of one exponent for each channel.
    sums_rows = needs.weight or (needs.exponent and per_channel)
    programs = min(groups, layouts.WEIGHT_PROGRAMS) if sums_rows else groups
    features = 0 if weight is None else len(weight)

    def scratch(*shape: int, needed: bool = True) -> Tensor | None:
        return torch.empty(shape, dtype=dtype, device=x.device) if needed else None

    dx, partial = torch.empty_like(x), scratch(_num_slots(leaving, spec.piece), channels)
    d_edge = torch.empty_like(edge) if needs.edge and edge is not None else None
    d_weight = scratch(programs, features, channels, needed=needs.weight)
    d_exponent = scratch(programs, channels if per_channel else spans, needed=needs.exponent)
    kernels.backward[(programs, spans)](
        grad, x, exponent, edge, weight, leaving.indices, leaving.edges, graph.arriving.indptr, leaving.pieces,
        num_pieces, y, k, dx, partial, d_edge, d_weight, d_exponent, channels, features, EPS=spec.eps,
        POWER=spec.kind == "power", EDGE=EDGE_MODES[spec.edge_kind], RELU=spec.relu, SEMI=spec.semi_gradient,
        NEED_EXPONENT=needs.exponent, NEED_EDGE=needs.edge, NEED_WEIGHT=needs.weight, PIECES=pieces, WIDTH=width,
        UNROLL=tile.unroll, FEATURES=triton.next_power_of_2(max(1, features)), PER_CHANNEL=per_channel,
        real=TRITON_DTYPES[dtype], num_warps=tile.warps,
    )  # fmt: skip
    if num_hubs:
        kernels.merge_backward[(num_hubs, spans)](
            leaving.hubs, num_hubs, partial, dx, channels, SLOTS=layouts.MERGE_SLOTS, WIDTH=width,
            real=TRITON_DTYPES[dtype],
        )  # fmt: skip
    return AggregateGrads(
        dx,
        None if d_exponent is None else d_exponent.sum(0) if per_channel else d_exponent.sum(),
        d_edge,
        None if d_weight is None or weight is None else d_weight.sum(0).to(weight.dtype),
    )
