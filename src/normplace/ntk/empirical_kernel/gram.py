"""Kernel blocks from features.

``K += Φ₁Φ₂ᵀ`` for dense gradients, ``K += (A₁A₂ᵀ)∘(G₁G₂ᵀ)`` for factors. Blocks are computed in two scratch buffers, so
that no other N×N matrix is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from normplace.ntk.empirical_kernel.features import FactorPair, Features

# Entries of a scratch buffer: on the CPU both fit into the caches, on a GPU they occupy all units.
SCRATCH_CPU = 1 << 18
SCRATCH_GPU = 1 << 26
# Rows of a diagonal block, which is computed completely although its upper half suffices.
PANEL_CPU = 128
PANEL_GPU = 1024


class Scratch:
    """Two reusable buffers; allocations per block would dominate the time of small networks."""

    def __init__(self, like: Tensor) -> None:
        on_cpu = like.device.type == "cpu"
        self.size = SCRATCH_CPU if on_cpu else SCRATCH_GPU
        self.panel = PANEL_CPU if on_cpu else PANEL_GPU
        self._like = like
        self._buffers: dict[int, Tensor] = {}

    def take(self, index: int, rows: int, columns: int) -> Tensor:
        """Buffer ``index`` as an uninitialized matrix."""
        need, buffer = rows * columns, self._buffers.get(index)
        if buffer is None or buffer.numel() < need:
            buffer = self._buffers[index] = self._like.new_empty(need)
        return (buffer if buffer.numel() == need else buffer[:need]).view(rows, columns)


def accumulate(
    kernel: Tensor,
    left: Features,
    right: Features,
    *,
    symmetric: bool = False,
    tick: Callable[[int], object] | None = None,
) -> None:
    """Add the kernel between two sets of samples to ``kernel``, a (n1·R, n2·R) matrix.

    Args:
        kernel: The matrix to add to; may be a slice of a larger one.
        left: Features of the samples along the rows.
        right: Features of the samples along the columns.
        symmetric: Whether ``left`` and ``right`` are the same samples; then one triangle is computed and mirrored.
        tick: Called with the number of sample pairs that were completed.
    """
    r, scratch = left.rows, Scratch(kernel)
    for i0, i1, j0, j1 in _blocks(left, right, scratch, symmetric):
        block = kernel[i0 * r : i1 * r, j0 * r : j1 * r]
        if left.flat is not None and right.flat is not None:
            block.addmm_(_part(left.flat, i0 * r, i1 * r), _part(right.flat, j0 * r, j1 * r).T)
        for a, b in zip(left.pairs, right.pairs, strict=True):
            _add_pair(block, a, b, (i0, i1, j0, j1), scratch)
        if tick is not None:
            tick((i1 - i0) * (j1 - j0) * (2 if symmetric and j0 >= i1 else 1))
    if symmetric:
        _mirror(kernel, scratch.panel * r)


def _blocks(left: Features, right: Features, scratch: Scratch, symmetric: bool) -> Iterator[tuple[int, int, int, int]]:
    """Blocks (i0, i1, j0, j1) of samples whose products fit the buffers; if symmetric, only the upper ones."""
    depth = max((_positions(a) * _positions(b) for a, b in zip(left.pairs, right.pairs, strict=True)), default=1)
    area = max(1, scratch.size // (depth * left.rows**2))
    height = max(1, min(scratch.panel, area))
    width = max(1, area // height)
    for i0 in range(0, left.samples, height):
        i1 = min(i0 + height, left.samples)
        for j0 in range(i0 if symmetric else 0, right.samples, width):
            yield i0, i1, j0, min(j0 + width, right.samples)


def _part(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows of a tensor; the tensor itself if they are all of it."""
    return tensor if stop - start == tensor.shape[0] else tensor[start:stop]


def _positions(pair: FactorPair) -> int:
    return pair.gradients.shape[2]


def _add_pair(block: Tensor, a: FactorPair, b: FactorPair, where: tuple[int, int, int, int], scratch: Scratch) -> None:
    i0, i1, j0, j1 = where
    ni, nj, r = i1 - i0, j1 - j0, a.gradients.shape[1]
    ti, tj = _positions(a), _positions(b)
    q = scratch.take(0, ni * r * ti, nj * r * tj)
    torch.mm(_part(a.gradients, i0, i1).flatten(0, 2), _part(b.gradients, j0, j1).flatten(0, 2).T, out=q)
    if a.inputs.is_floating_point():
        p = scratch.take(1, ni * ti, nj * tj)
        torch.mm(_part(a.inputs, i0, i1).flatten(0, 1), _part(b.inputs, j0, j1).flatten(0, 1).T, out=p)
        if a.plus:
            p.add_(a.plus)
    else:  # the product of two rows of the identity
        p = (a.inputs[i0:i1].reshape(-1, 1) == b.inputs[j0:j1].reshape(1, -1)).to(q.dtype)
    if ti == tj == r == 1:
        block.addcmul_(p, q)
        return
    q = q.view(ni, r, ti, nj, r, tj)
    q.mul_(p.view(ni, 1, ti, nj, 1, tj))
    block.add_(q.sum((2, 5)).view(ni * r, nj * r))


def _mirror(kernel: Tensor, step: int) -> None:
    """Copy the upper triangle onto the lower, so that the kernel is exactly symmetric."""
    size = kernel.shape[0]
    for i in range(0, size, step):
        j = min(i + step, size)
        corner = kernel[i:j, i:j]
        corner.copy_(corner.triu() + corner.triu(1).T)
        kernel[j:, i:j].copy_(kernel[i:j, j:].T)


def diagonal(features: Features) -> Tensor:
    """Θ(x_i, x_i) as (n, R, R)."""
    n, r = features.samples, features.rows
    blocks = []
    if features.flat is not None:
        flat = features.flat.view(n, r, -1)
        blocks.append(flat @ flat.mT)
    for pair in features.pairs:
        t = _positions(pair)
        if pair.inputs.is_floating_point():
            p = pair.inputs @ pair.inputs.mT + pair.plus
        else:
            p = (pair.inputs[:, :, None] == pair.inputs[:, None, :]).to(pair.gradients.dtype)
        g = pair.gradients.flatten(1, 2)
        q = (g @ g.mT).view(n, r, t, r, t)
        blocks.append((q * p.view(n, 1, t, 1, t)).sum((2, 4)))
    return sum(blocks[1:], start=blocks[0])
