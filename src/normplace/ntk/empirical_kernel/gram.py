"""Kernel blocks from features.

``K = Φ₁Φ₂ᵀ`` for dense gradients, ``K += (A₁A₂ᵀ)∘(G₁G₂ᵀ)`` for factors. Blocks are computed in two scratch buffers, so
that no other N×N matrix is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from normplace.ntk.empirical_kernel.features import FactorPair, Features, part

# Entries of a scratch buffer: on the CPU both fit into the caches, on a GPU they occupy all units.
SCRATCH_CPU = 1 << 18
SCRATCH_GPU = 1 << 26
# Rows of a diagonal block, which is computed completely although its upper half suffices. A GPU computes one of this
# size faster than it starts the operations of two.
PANEL_CPU = 128
PANEL_GPU = 2048
# Rows whose distance in bytes is a multiple of this use the same sets of a cache.
CACHE_SETS = 4096


class Scratch:
    """Two reusable buffers; allocations per block would dominate the time of small networks."""

    def __init__(self, like: Tensor) -> None:
        on_cpu = like.device.type == "cpu"
        self.size = SCRATCH_CPU if on_cpu else SCRATCH_GPU
        self.panel = PANEL_CPU if on_cpu else PANEL_GPU
        self._like = like
        self._buffers: dict[int, Tensor] = {}

    def product(self, index: int, a: Tensor, b: Tensor, *, is_only: bool) -> Tensor:
        """The matrix a bᵀ in buffer ``index``, or in new memory if it is the only one."""
        if is_only:
            return torch.mm(a, b.T)
        rows, columns = a.shape[0], b.shape[0]
        need, buffer = rows * columns, self._buffers.get(index)
        if buffer is None or buffer.numel() < need:
            buffer = self._buffers[index] = self._like.new_empty(need)
        out = (buffer if buffer.numel() == need else buffer[:need]).view(rows, columns)
        return torch.mm(a, b.T, out=out)


def fill(
    kernel: Tensor,
    left: Features,
    right: Features,
    *,
    symmetric: bool = False,
    tick: Callable[[int], object] | None = None,
) -> None:
    """Write the kernel between two sets of samples to ``kernel``, a (n1·R, n2·R) matrix.

    Args:
        kernel: The matrix to overwrite; may be a slice of a larger one.
        left: Features of the samples along the rows.
        right: Features of the samples along the columns.
        symmetric: Whether ``left`` and ``right`` are the same samples; then one triangle is computed and mirrored.
        tick: Called with the number of sample pairs that were completed.
    """
    r, scratch = left.rows, Scratch(kernel)
    for i0, i1, j0, j1 in _blocks(left, right, scratch, symmetric):
        is_whole = i1 - i0 == left.samples and j1 - j0 == right.samples
        block = kernel if is_whole else kernel[i0 * r : i1 * r, j0 * r : j1 * r]
        is_new = left.flat is None or right.flat is None
        if left.flat is not None and right.flat is not None:
            torch.mm(part(left.flat, i0 * r, i1 * r), part(right.flat, j0 * r, j1 * r).T, out=block)
        for a, b in zip(left.pairs, right.pairs, strict=True):
            _add_pair(block, a, b, (i0, i1, j0, j1), scratch, is_new=is_new, is_only=is_whole)
            is_new = False
        if tick is not None:
            tick((i1 - i0) * (j1 - j0) * (2 if symmetric and j0 >= i1 else 1))
    if symmetric:
        _mirror(kernel, scratch.panel * r)


def _blocks(left: Features, right: Features, scratch: Scratch, symmetric: bool) -> Iterator[tuple[int, int, int, int]]:
    """Blocks (i0, i1, j0, j1) of samples whose products fit the buffers; if symmetric, only the upper ones."""
    depth = max((a.positions * b.positions for a, b in zip(left.pairs, right.pairs, strict=True)), default=1)
    area = max(1, scratch.size // (depth * left.rows**2))
    height = max(1, min(scratch.panel, area))
    width = max(1, area // height)
    for i0 in range(0, left.samples, height):
        i1 = min(i0 + height, left.samples)
        for j0 in range(i0 if symmetric else 0, right.samples, width):
            yield i0, i1, j0, min(j0 + width, right.samples)


def _add_pair(
    block: Tensor,
    a: FactorPair,
    b: FactorPair,
    where: tuple[int, int, int, int],
    scratch: Scratch,
    *,
    is_new: bool,
    is_only: bool,
) -> None:
    """Add the part of one weight to a block, or write it if the block is new.

    Args:
        block: The block.
        a: Factors of the samples along the rows.
        b: Factors of the samples along the columns.
        where: Samples of the block: first row, last row, first column, last column.
        scratch: Memory for products.
        is_new: Whether the block has no values yet.
        is_only: Whether the block is the whole kernel.
    """
    i0, i1, j0, j1 = where
    ti, tj, r = a.positions, b.positions, a.rows
    q = scratch.product(
        0, part(a.gradients, i0 * r * ti, i1 * r * ti), part(b.gradients, j0 * r * tj, j1 * r * tj), is_only=is_only
    )
    left, right = part(a.inputs, i0 * ti, i1 * ti), part(b.inputs, j0 * tj, j1 * tj)
    if left.is_floating_point():
        p = scratch.product(1, left, right, is_only=is_only)
        if a.plus:
            p.add_(a.plus)
    else:  # the product of two rows of the identity
        p = (left[:, None] == right).to(q.dtype)
    if ti == tj == r == 1:
        torch.mul(p, q, out=block) if is_new else block.addcmul_(p, q)
        return
    ni, nj = i1 - i0, j1 - j0
    q = q.view(ni, r, ti, nj, r, tj)
    q.mul_(p.view(ni, 1, ti, nj, 1, tj))
    summed = q.sum((2, 5)).view(ni * r, nj * r)
    block.copy_(summed) if is_new else block.add_(summed)


def _mirror(kernel: Tensor, step: int) -> None:
    """Copy the upper triangle onto the lower, so that the kernel is exactly symmetric."""
    size = kernel.shape[0]
    has_conflicts = kernel.device.type == "cpu" and kernel.stride(0) * kernel.itemsize % CACHE_SETS == 0
    for i in range(0, size, step):
        j = min(i + step, size)
        corner = kernel if j - i == size else kernel[i:j, i:j]
        corner.triu_().add_(corner.triu(1).T)
        if j < size:
            upper = kernel[i:j, j:]
            # A column of such a kernel fills few sets of the cache; that of a copy fills all of them.
            kernel[j:, i:j].copy_(upper.contiguous().T.contiguous() if has_conflicts else upper.T)


def diagonal(features: Features) -> Tensor:
    """Θ(x_i, x_i) as (n, R, R)."""
    n, r = features.samples, features.rows
    blocks = []
    if features.flat is not None:
        flat = features.flat.view(n, r, features.flat.shape[1])
        blocks.append(flat @ flat.mT)
    for pair in features.pairs:
        t = pair.positions
        if pair.inputs.is_floating_point():
            inputs = pair.inputs.view(n, t, pair.inputs.shape[1])
            p = inputs @ inputs.mT + pair.plus
        else:
            inputs = pair.inputs.view(n, t)
            p = (inputs[:, :, None] == inputs[:, None, :]).to(pair.gradients.dtype)
        g = pair.gradients.view(n, r * t, pair.gradients.shape[1])
        q = (g @ g.mT).view(n, r, t, r, t)
        blocks.append((q * p.view(n, 1, t, 1, t)).sum((2, 4)))
    return sum(blocks[1:], start=blocks[0])
