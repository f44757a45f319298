"""Triton kernels of the aggregation, launched by :mod:`normplace.lab.studies.deepergcn.molhiv_aggregation`.

A program computes some atoms of one seed with all their channels, and visits the bonds of its atoms. Every bond is
stored in both directions with the same kind, so the atoms that an atom receives messages from are those it sends
messages to, and the gradient of the features needs no scattered sums either.
"""
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def _atoms(first, seed, atoms, BLOCK: tl.constexpr):
    """The atoms of a program, which of them exist, where their bonds begin, and their degrees."""
    atom = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = atom < atoms
    place = first + seed * (atoms + 1) + atom
    begin = tl.load(place, mask=inside, other=0)
    return atom, inside, begin, tl.load(place + 1, mask=inside, other=0) - begin


@triton.jit
def forward(
    x, table, temperature, first, source, kind, out, mean, total, atoms, bonds, kinds, eps, largest,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The aggregated messages ``mean``, the sum ``total`` of their weights, and ``out``, the mean plus the features."""
    seed = tl.program_id(1).to(tl.int64)
    atom, inside, begin, degree = _atoms(first, seed, atoms, BLOCK)
    channel = tl.arange(0, WIDTH)[None, :]
    in_width = channel < C
    t = tl.load(temperature + seed)
    weights = tl.zeros([BLOCK, WIDTH], x.dtype.element_ty)
    sums = tl.zeros([BLOCK, WIDTH], x.dtype.element_ty)
    for number in range(tl.max(degree)):
        has = number < degree
        bond = seed * bonds + begin + number
        other = tl.load(source + bond, mask=has, other=0)
        row = tl.load(kind + bond, mask=has, other=0)
        mask = has[:, None] & in_width
        features = tl.load(x + (seed * atoms + other)[:, None] * C + channel, mask=mask, other=0.0)
        features += tl.load(table + (seed * kinds + row)[:, None] * C + channel, mask=mask, other=0.0)
        message = tl.maximum(features, 0.0) + eps
        weight = tl.where(mask, tl.exp(tl.minimum(message * t, largest)), 0.0)
        weights += weight
        sums += weight * message
    weights = tl.where(degree[:, None] == 0, 1.0, weights)
    sums /= weights
    place = (seed * atoms + atom)[:, None] * C + channel
    mask = inside[:, None] & in_width
    tl.store(total + place, weights, mask=mask)
    tl.store(mean + place, sums, mask=mask)
    tl.store(out + place, sums + tl.load(x + place, mask=mask, other=0.0), mask=mask)


@triton.jit
def backward(
    grad, x, table, temperature, mean, total, first, source, kind, of_x, of_table, of_temperature,
    atoms, bonds, kinds, eps, largest,
    C: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients, from the messages that the atoms of a program send.

    ``of_table`` must be zero before. ``of_temperature`` has one sum for each program.
    """
    seed = tl.program_id(1).to(tl.int64)
    atom, inside, begin, degree = _atoms(first, seed, atoms, BLOCK)
    channel = tl.arange(0, WIDTH)[None, :]
    in_width = channel < C
    t = tl.load(temperature + seed)
    own = (seed * atoms + atom)[:, None] * C + channel
    mine = inside[:, None] & in_width
    features = tl.load(x + own, mask=mine, other=0.0)
    of_features = tl.load(grad + own, mask=mine, other=0.0)
    pull = tl.zeros([BLOCK, WIDTH], x.dtype.element_ty)
    for number in range(tl.max(degree)):
        has = number < degree
        bond = seed * bonds + begin + number
        other = tl.load(source + bond, mask=has, other=0)
        row = tl.load(kind + bond, mask=has, other=0)
        mask = has[:, None] & in_width
        place = (seed * atoms + other)[:, None] * C + channel
        entry = (seed * kinds + row)[:, None] * C + channel
        before = features + tl.load(table + entry, mask=mask, other=0.0)
        message = tl.maximum(before, 0.0) + eps
        weight = tl.exp(tl.minimum(message * t, largest)) / tl.load(total + place, mask=mask, other=1.0)
        weight *= tl.load(grad + place, mask=mask, other=0.0)
        above = message - tl.load(mean + place, mask=mask, other=0.0)
        pull += tl.where(mask, weight * above * message, 0.0)
        of_message = tl.where(mask & (before > 0), weight * (1 + t * above), 0.0)
        of_features += of_message
        tl.atomic_add(of_table + entry, of_message, mask=mask, sem="relaxed")
    tl.store(of_x + own, of_features, mask=mine)
    tl.store(of_temperature + seed * tl.num_programs(0) + tl.program_id(0), tl.sum(pull))
