"""Norms of rows inside the Triton kernels, forward and backward, and the sums that a program leaves for the next."""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from normplace.ops.norm_add_norm.triton_steps import unpadded
from normplace.ops.rounding import mean_of, reciprocal_root


@triton.jit
def note(value, stats, row, there, place: tl.constexpr, KEPT: tl.constexpr):
    """Store one of the KEPT statistics of each row, unless ``stats`` is None."""
    if stats is not None:
        tl.store(stats + row.to(tl.int64) * KEPT + place, value, mask=there)


@triton.jit
def deviation(squares, eps, D: tl.constexpr):
    """Reciprocal deviations of rows, from their sums of squares; nan where these overflow, which would make it zero."""
    root = reciprocal_root(mean_of(squares, D) + eps)
    return tl.where(squares < float("inf"), root, float("nan"))


@triton.jit
def standardised(
    v, inside, row, there, stats, place: tl.constexpr, eps,
    D: tl.constexpr, KIND: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Standardised rows; stores their statistics at ``place`` of the KEPT statistics of each row."""
    if KIND == 2:
        mean = mean_of(tl.sum(v, 1), D)
        v = unpadded(v - mean[:, None], inside, D, BLOCK)
        note(mean, stats, row, there, place + 2, KEPT)
    rstd = deviation(tl.sum(v * v, 1), eps, D)
    note(rstd, stats, row, there, place, KEPT)
    return v * rstd[:, None]


@triton.jit
def centred(v, row, there, stats, place: tl.constexpr, KIND: tl.constexpr, KEPT: tl.constexpr):
    """Rows, centred if the norm subtracts the mean, and their reciprocal deviations."""
    stats += row.to(tl.int64) * KEPT + place
    rstd = tl.load(stats, mask=there, other=0.0)
    if KIND == 2:
        v -= tl.load(stats + 2, mask=there, other=0.0)[:, None]
    return v, rstd[:, None]


@triton.jit
def pulls_of(g, v, rstd, D: tl.constexpr, KIND: tl.constexpr):
    """The parts that a norm subtracts from the gradient: the multiple of the centred rows ``v``, and the mean.

    ``g`` is the gradient of the standardised rows, divided by their deviations.
    """
    pull = mean_of(tl.sum(g * v, 1), D)[:, None] * rstd * rstd
    return pull, mean_of(tl.sum(g, 1), D)[:, None] if KIND == 2 else tl.zeros_like(pull)


@triton.jit
def through_norm(g, v, pull, mean, D: tl.constexpr, KIND: tl.constexpr):
    """The gradient of the rows before their norm."""
    if KIND == 2 and D == 1:
        # A single channel is its own mean. The compiler fuses the product of g and the gain with the subtraction, and
        # 1 / sqrt(eps) of a constant row would amplify the rounding error that is left.
        return tl.zeros_like(g)
    if KIND == 2:
        g -= mean
    return g - v * pull


@triton.jit
def part_of(parts, which: tl.constexpr, program, programs, D: tl.constexpr):
    """Offset of a program's part of one sum."""
    return parts + (which * programs + program) * D


@triton.jit
def leave(total, parts, which: tl.constexpr, program, programs, cols, inside, D: tl.constexpr):
    """Store a program's part of a sum, if the sum is needed."""
    if which >= 0:
        tl.store(part_of(parts, which, program, programs, D) + cols, tl.sum(total, 0), mask=inside)


@triton.jit
def summed(
    parts, which: tl.constexpr, first, count, programs, cols, inside,
    D: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """One sum over the parts that ``count`` programs left, from program ``first`` on."""
    start = part_of(parts, which, first, programs, D)
    total = tl.zeros([CHUNK, SPAN], tl.float32)
    for number in range(0, count, CHUNK):
        part = number + tl.arange(0, CHUNK)
        mask = (part < count)[:, None] & inside[None, :]
        total += tl.load(start + part[:, None] * D + cols[None, :], mask=mask, other=0.0)
    return tl.sum(total, 0)[None, :]
