"""Generalized aggregation on a GPU: one pass over the edges, no temporary of their size, no atomics.

The mathematics is that of :mod:`normplace.ops.aggregate.reference`, with the softmax taken online: one exponential for
each edge and channel. A program walks a few pieces of rows side by side, each thread keeping its own channels, so nothing
is exchanged between threads. Rows longer than a piece are cut; their parts are merged by a second, small kernel, so a
hub costs no more than the same number of edges elsewhere. The backward pass walks the edges that leave each node.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from normplace.ops.aggregate.neighbours import Half
from normplace.ops.aggregate.reference import Grads, Needs, Rule

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


FORWARD = Tile(elements=512, unroll=4, warps=4)
BACKWARD = Tile(elements=512, unroll=2, warps=4)
# A program that sums gradients of weights keeps K × D of them in registers, so it walks one piece at a time, and there
# are only so many programs.
BACKWARD_WEIGHT = Tile(elements=1, unroll=2, warps=1)
WEIGHT_PROGRAMS = 132 * 16
# Parts of a cut row that are merged at a time.
MERGE_SLOTS = 16


@triton.jit
def _gap(t, value, pivot):
    return tl.where(value == pivot, 0.0, t * (value - pivot))


@triton.jit
def _expm1_ratio(u, ex):
    # Kahan's quotient near zero, where exp(u) - 1 has lost digits but its error divides out.
    near = tl.where(ex == 1.0, 1.0, (ex - 1.0) / tl.log(tl.where((ex == 1.0) | (ex <= 0.0), 2.0, ex)))
    return tl.where(tl.abs(u) < 0.5, near, (ex - 1.0) / tl.where(u == 0.0, 1.0, u))


@triton.jit
def _log1p_ratio(u):
    one = 1.0 + u
    return tl.where(one == 1.0, 1.0, tl.log(one) / tl.where(one == 1.0, 1.0, one - 1.0))


@triton.jit
def _psi(u, ex):
    s = u * (1 / 43545600) + 1 / 3991680
    s = s * u + 1 / 403200
    s = s * u + 1 / 45360
    s = s * u + 1 / 5760
    s = s * u + 1 / 840
    s = s * u + 1 / 144
    s = s * u + 1 / 30
    s = s * u + 1 / 8
    s = s * u + 1 / 3
    s = s * u + 1 / 2
    safe = tl.where(u == 0.0, 1.0, u)
    return tl.where(tl.abs(u) < 0.25, s, (ex - (ex - 1.0) / safe) / safe)


@triton.jit
def _edge_term(edge, weight, e, there, cols, in_width, D, K, EDGE: tl.constexpr, real: tl.constexpr):
    """The edge terms of one edge per piece."""
    mask = there[:, None] & in_width[None, :]
    if EDGE == 1:
        return tl.load(edge + e[:, None] * D + cols[None, :], mask=mask, other=0.0).to(real)
    if EDGE == 3:
        row = tl.load(edge + e, mask=there, other=0).to(tl.int64)
        return tl.load(weight + row[:, None] * D + cols[None, :], mask=mask, other=0.0).to(real)
    term = tl.zeros_like(mask.to(real))
    for f in range(K):
        value = tl.load(edge + e * K + f, mask=there, other=0.0).to(real)
        row = tl.load(weight + f * D + cols, mask=in_width, other=0.0).to(real)
        term += value[:, None] * row[None, :]
    return term


@triton.jit
def _finish(c, s, w, n, t, POWER: tl.constexpr):
    """The aggregate and what is kept of it, from pivot, sum and weighted sum."""
    if POWER:
        mean, excess = s / n, w / n
        k = c + tl.where(mean < 0.5, tl.log(mean) / t, excess * _log1p_ratio(t * excess))
        return tl.exp(k), k
    y = c + w / s
    return y, tl.log(s) + _gap(t, c, y)


@triton.jit
def _forward(
    x, exponent, edge, weight, indices, edges, pieces, num_pieces, y, k, part, slots, D, K, eps,
    POWER: tl.constexpr, EDGE: tl.constexpr, RELU: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr,
    UNROLL: tl.constexpr, real: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) * PIECES + tl.arange(0, PIECES)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = cols < D
    row = tl.load(pieces + item, mask=item < num_pieces, other=-1).to(tl.int64)
    exists = row >= 0
    start = tl.load(pieces + num_pieces + item, mask=exists, other=0).to(tl.int64)
    length = tl.load(pieces + 2 * num_pieces + item, mask=exists, other=0).to(tl.int64) - start
    slot = tl.load(pieces + 3 * num_pieces + item, mask=exists, other=-1).to(tl.int64)
    t = tl.load(exponent).to(real)
    c = tl.zeros([PIECES, WIDTH], real)
    s = tl.zeros([PIECES, WIDTH], real)
    w = tl.zeros([PIECES, WIDTH], real)
    for first in range(0, tl.max(length).to(tl.int32), UNROLL):
        for step in tl.static_range(UNROLL):
            n = first + step
            there = n < length
            mask = there[:, None] & in_width[None, :]
            source = tl.load(indices + start + n, mask=there, other=0).to(tl.int64)
            v = tl.load(x + source[:, None] * D + cols[None, :], mask=mask, other=0.0).to(real)
            if EDGE > 0:
                e = tl.load(edges + start + n, mask=there, other=0).to(tl.int64)
                v += _edge_term(edge, weight, e, there, cols, in_width, D, K, EDGE, real)
            if RELU:
                v = tl.where(v <= 0.0, 0.0, v)
            v += eps
            if POWER:
                v = tl.log(tl.where(mask, v, 1.0))
            c = tl.where(n == 0, v, c)
            diff = v - c
            u = _gap(t, v, c)
            ex = tl.exp(-tl.abs(u))
            up = u > 0.0
            if POWER:
                ratio = _expm1_ratio(-tl.abs(u), ex)
                new_w = tl.where(up, ex * w - n * diff * ratio, w + diff * ratio)
            else:
                new_w = tl.where(up, ex * (w - s * diff), w + ex * diff)
            w = tl.where(mask, new_w, w)
            s = tl.where(mask, tl.where(up, s * ex + 1.0, s + ex), s)
            c = tl.where(mask & up, v, c)
    whole = exists & (slot < 0)
    empty = (length == 0)[:, None]
    out, kept = _finish(c, tl.where(empty, 1.0, s), w, tl.maximum(length, 1).to(real)[:, None], t, POWER)
    place = row[:, None] * D + cols[None, :]
    tl.store(y + place, tl.where(empty, 0.0, out), mask=whole[:, None] & in_width[None, :])
    tl.store(k + place, tl.where(empty, 0.0, kept), mask=whole[:, None] & in_width[None, :])
    place = slot[:, None] * D + cols[None, :]
    mask = (exists & (slot >= 0))[:, None] & in_width[None, :]
    tl.store(part + place, c, mask=mask)
    tl.store(part + slots * D + place, s, mask=mask)
    tl.store(part + 2 * slots * D + place, w, mask=mask)


@triton.jit
def _merge_forward(
    exponent, indptr, hubs, num_hubs, part, slots, y, k, D, piece,
    POWER: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, real: tl.constexpr,
):  # fmt: skip
    hub = tl.program_id(0)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = cols < D
    row = tl.load(hubs + hub).to(tl.int64)
    if row >= 0:
        first = tl.load(hubs + num_hubs + hub).to(tl.int64)
        count = tl.load(hubs + 2 * num_hubs + hub).to(tl.int32)
        degree = tl.load(indptr + row + 1) - tl.load(indptr + row)
        t = tl.load(exponent).to(real)
        c = tl.load(part + first * D + cols, mask=in_width, other=0.0)
        s = tl.zeros([WIDTH], real)
        w = tl.zeros([WIDTH], real)
        done = 0
        for begin in range(0, count, SLOTS):
            number = begin + tl.arange(0, SLOTS)
            there = number < count
            mask = there[:, None] & in_width[None, :]
            place = (first + number)[:, None] * D + cols[None, :]
            c2 = tl.load(part + place, mask=mask, other=0.0)
            s2 = tl.load(part + slots * D + place, mask=mask, other=0.0)
            w2 = tl.load(part + 2 * slots * D + place, mask=mask, other=0.0)
            c2 = tl.where(mask, c2, c[None, :])
            best = tl.where(t < 0.0, tl.minimum(c, tl.min(c2, 0)), tl.maximum(c, tl.max(c2, 0)))
            held = tl.where(there, tl.minimum(piece, degree - number * piece), 0).to(real)
            u = _gap(t, c, best)
            u2 = _gap(t, c2, best[None, :])
            ex = tl.exp(u)
            ex2 = tl.exp(u2)
            if POWER:
                shift = done * (c - best) * _expm1_ratio(u, ex)
                shift2 = held[:, None] * (c2 - best[None, :]) * _expm1_ratio(u2, ex2)
                w = w * ex + shift + tl.sum(w2 * ex2 + shift2, 0)
            else:
                w = ex * (w + s * (c - best)) + tl.sum(ex2 * (w2 + s2 * (c2 - best[None, :])), 0)
            s = s * ex + tl.sum(s2 * ex2, 0)
            c = best
            done += SLOTS * piece
        out, kept = _finish(c, s, w, degree.to(real), t, POWER)
        tl.store(y + row * D + cols, out, mask=in_width)
        tl.store(k + row * D + cols, kept, mask=in_width)


@triton.jit
def _backward(
    grad, x, exponent, edge, weight, indices, edges, degree_ptr, pieces, num_pieces, y, k,
    dx, part, d_edge, d_weight, d_exponent, D, K, eps,
    POWER: tl.constexpr, EDGE: tl.constexpr, RELU: tl.constexpr, SEMI: tl.constexpr, NEED_EXPONENT: tl.constexpr,
    NEED_EDGE: tl.constexpr, NEED_WEIGHT: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr,
    UNROLL: tl.constexpr, FEATURES: tl.constexpr, real: tl.constexpr,
):  # fmt: skip
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = cols < D
    feature = tl.arange(0, FEATURES)
    t = tl.load(exponent).to(real)
    d_t = tl.zeros([PIECES, WIDTH], real)
    d_w = tl.zeros([FEATURES, WIDTH], real)
    for group in range(tl.program_id(0), tl.cdiv(num_pieces, PIECES), tl.num_programs(0)):
        item = group * PIECES + tl.arange(0, PIECES)
        row = tl.load(pieces + item, mask=item < num_pieces, other=-1).to(tl.int64)
        exists = row >= 0
        start = tl.load(pieces + num_pieces + item, mask=exists, other=0).to(tl.int64)
        length = tl.load(pieces + 2 * num_pieces + item, mask=exists, other=0).to(tl.int64) - start
        slot = tl.load(pieces + 3 * num_pieces + item, mask=exists, other=-1).to(tl.int64)
        here = exists[:, None] & in_width[None, :]
        x_row = tl.load(x + row[:, None] * D + cols[None, :], mask=here, other=0.0).to(real)
        total = tl.zeros([PIECES, WIDTH], real)
        for first in range(0, tl.max(length).to(tl.int32), UNROLL):
            for step in tl.static_range(UNROLL):
                n = first + step
                there = n < length
                mask = there[:, None] & in_width[None, :]
                target = tl.load(indices + start + n, mask=there, other=0).to(tl.int64)
                place = target[:, None] * D + cols[None, :]
                g = tl.load(grad + place, mask=mask, other=0.0).to(real)
                kept = tl.load(k + place, mask=mask, other=0.0)
                b = x_row
                if EDGE > 0:
                    e = tl.load(edges + start + n, mask=there, other=0).to(tl.int64)
                    b += _edge_term(edge, weight, e, there, cols, in_width, D, K, EDGE, real)
                m = b
                if RELU:
                    m = tl.where(b <= 0.0, 0.0, b)
                m += eps
                if POWER:
                    degree = tl.load(degree_ptr + target + 1, mask=there, other=1)
                    degree -= tl.load(degree_ptr + target, mask=there, other=0)
                    share = g / degree.to(real)[:, None]
                    diff = tl.log(tl.where(mask, m, 1.0)) - kept
                    dm = share * tl.exp((t - 1.0) * diff)
                    if NEED_EXPONENT:
                        d_t += share * tl.exp(kept) * diff * diff * _psi(t * diff, tl.exp(t * diff))
                else:
                    out = tl.load(y + place, mask=mask, other=0.0)
                    u = _gap(t, m, out)
                    # The other pieces of the program may be longer: past its end, a piece has no weight.
                    a = g * tl.exp(tl.where(mask, u - kept, 0.0))
                    dm = a
                    if not SEMI:
                        dm = tl.where(a == 0.0, 0.0, a * (1.0 + u))
                    if NEED_EXPONENT:
                        d_t += a * (m - out) * (m - out)
                if RELU:
                    dm = tl.where(b <= 0.0, 0.0, dm)
                dm = tl.where(mask, dm, 0.0)
                total += dm
                if NEED_EDGE:
                    tl.store(d_edge + e[:, None] * D + cols[None, :], dm, mask=mask)
                if NEED_WEIGHT:
                    if EDGE == 2:
                        read = there[:, None] & (feature < K)[None, :]
                        value = tl.load(edge + e[:, None] * K + feature[None, :], mask=read, other=0.0).to(real)
                    else:
                        value = (tl.load(edge + e, mask=there, other=-1)[:, None] == feature[None, :]).to(real)
                    # There is one piece, so the sum is over one row; it only turns it into a column.
                    d_w += tl.sum(value, 0)[:, None] * dm
        tl.store(dx + row[:, None] * D + cols[None, :], total, mask=here & (slot < 0)[:, None])
        tl.store(part + slot[:, None] * D + cols[None, :], total, mask=here & (slot >= 0)[:, None])
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    if NEED_EXPONENT:
        tl.store(d_exponent + program, tl.sum(tl.sum(tl.where(in_width[None, :], d_t, 0.0), 1), 0))
    if NEED_WEIGHT:
        place = (tl.program_id(0) * K + feature)[:, None] * D + cols[None, :]
        tl.store(d_weight + place, d_w, mask=(feature < K)[:, None] & in_width[None, :])


@triton.jit
def _merge_backward(hubs, num_hubs, part, dx, D, SLOTS: tl.constexpr, WIDTH: tl.constexpr, real: tl.constexpr):
    hub = tl.program_id(0)
    cols = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_width = cols < D
    row = tl.load(hubs + hub).to(tl.int64)
    if row >= 0:
        first = tl.load(hubs + num_hubs + hub).to(tl.int64)
        count = tl.load(hubs + 2 * num_hubs + hub).to(tl.int32)
        total = tl.zeros([WIDTH], real)
        for begin in range(0, count, SLOTS):
            number = begin + tl.arange(0, SLOTS)
            mask = (number < count)[:, None] & in_width[None, :]
            total += tl.sum(tl.load(part + (first + number)[:, None] * D + cols[None, :], mask=mask, other=0.0), 0)
        tl.store(dx + row * D + cols, total, mask=in_width)


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
    _forward[(triton.cdiv(num_pieces, pieces), triton.cdiv(channels, width))](
        x, exponent, edge, weight, arriving.indices, arriving.edges, arriving.pieces, num_pieces, y, k, part, slots,
        channels, features, rule.eps, POWER=power, EDGE=MODES[rule.edge], RELU=rule.relu, PIECES=pieces,
        WIDTH=width, UNROLL=tile.unroll, real=real, num_warps=tile.warps,
    )  # fmt: skip
    if num_hubs:
        _merge_forward[(num_hubs, triton.cdiv(channels, width))](
            exponent, arriving.indptr, arriving.hubs, num_hubs, part, slots, y, k, channels, piece,
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
    _backward[(programs, spans)](
        grad, x, exponent, edge, weight, leaving.indices, leaving.edges, arriving.indptr, leaving.pieces, num_pieces,
        y, k, dx, part, d_edge, d_weight, d_exponent, channels, features, rule.eps, POWER=rule.kind == "power",
        EDGE=MODES[rule.edge], RELU=rule.relu, SEMI=rule.semi, NEED_EXPONENT=needs.exponent, NEED_EDGE=needs.edge,
        NEED_WEIGHT=needs.weight, PIECES=pieces, WIDTH=width, UNROLL=tile.unroll,
        FEATURES=triton.next_power_of_2(max(1, features)), real=real, num_warps=tile.warps,
    )  # fmt: skip
    if num_hubs:
        _merge_backward[(num_hubs, spans)](
            leaving.hubs, num_hubs, part, dx, channels, SLOTS=MERGE_SLOTS, WIDTH=width, real=real
        )
    return Grads(
        dx,
        None if d_exponent is None else d_exponent.sum(),
        d_edge,
        None if d_weight is None or weight is None else d_weight.sum(0).to(weight.dtype),
    )
