"""The scan on a CPU, compiled with numba: a pass over the rows, without temporaries of the size of the inputs.

Threads process sequences, or, if there are fewer sequences than threads, parts of them after a pass that sums their
keys. The result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normplace.ops.relation import scan_reference
from normplace.ops.relation.common import RelationSpec
from normplace.ops.relation.numba_scan_kernels import BLOCK, Kernels, kernels, lanes_for
from normplace.ops.relation.scan_reference import MAX_SUMMED_WIDTH, lowering
from normplace.ops.threads import run_blocks


class _Scan(NamedTuple):
    """The arguments of the loops for some inputs, and how the work is divided among threads."""

    passes: Kernels
    a: np.ndarray
    b: np.ndarray
    weight: np.ndarray
    """B × T."""
    shape: tuple[int, int, int, int]
    """B, T, heads, channels of a head."""
    parts: list[tuple[int, int, int]]
    """Sequence, first row and end."""
    options: tuple[Any, ...]

    @property
    def blocks(self) -> int:
        """Blocks of a sequence."""
        return -(-self.shape[1] // BLOCK)

    def sums(self) -> np.ndarray:
        """Zeros for the sums of the blocks of all sequences."""
        batch, _, heads, width = self.shape
        return np.zeros((batch, self.blocks * heads, width), np.float32)

    def run(self, task: Callable[[int, int, int], None]) -> None:
        """Call a task with the sequence, the first row and the end of each part."""
        run_blocks(task, self.parts, torch.get_num_threads())

    def carried(self, sums: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Sums before a part in float64, zero by default, and memory for their rounded values and a block's sums."""
        size = self.shape[2:]
        exact = np.zeros(size) if sums is None else sums.copy()
        return exact, np.empty(size, np.float32), np.zeros(size, np.float32)

    def key_sums(self) -> np.ndarray:
        """The sums of the keys of each block."""
        sums, (_, length, heads, _), eps = self.sums(), self.shape, self.options[2]

        def task(n: int, first: int, last: int) -> None:
            self.passes.key_sums(n * length, first, last, heads, self.b, self.weight[n], eps, sums[n])

        self.run(task)
        return sums

    def before(self, sums: np.ndarray, causal: bool, reverse: bool = False) -> np.ndarray:
        """The sums of the blocks before each block, or after it, or of all blocks; B × blocks × heads × channels."""
        batch, _, heads, width = self.shape
        blocks = sums.reshape(batch, self.blocks, heads, width)
        if reverse:
            blocks = blocks[:, ::-1]
        totals = np.cumsum(blocks, axis=1, dtype=np.float64)
        if not causal:
            return np.broadcast_to(totals[:, -1:], totals.shape)
        others = np.concatenate([np.zeros_like(totals[:, :1]), totals[:, :-1]], axis=1)
        return others[:, ::-1] if reverse else others


def _scan(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> _Scan:
    batch, length, channels = a.shape
    width = channels // spec.heads
    lanes = lanes_for(width)
    lower = lowering(spec, channels) or 0.0
    options = (spec.causal, spec.post_norm, *(np.float32(x) for x in (spec.eps, spec.eps * 4.0**-lower, lower)))
    threads, blocks = torch.get_num_threads(), -(-length // BLOCK)
    # Twice as many parts as threads, because another process may delay one.
    pieces = 1 if batch >= threads else min(blocks, -(-2 * threads // batch))
    step = -(-blocks // pieces) * BLOCK
    parts = [(n, first, min(first + step, length)) for n in range(batch) for first in range(0, length, step)]
    return _Scan(
        kernels(lanes, width % lanes == 0),
        a.float().reshape(-1, width).numpy(),
        b.float().reshape(-1, width).numpy(),
        weight.float().expand(batch, length).contiguous().numpy(),
        (batch, length, spec.heads, width),
        parts,
        options,
    )


def _sums_before(scan: _Scan, causal: bool) -> Callable[[int, int], np.ndarray | None]:
    """The sums of keys before a row that starts a part, in float64; None for zeros."""
    if causal and len(scan.parts) == scan.shape[0]:
        return lambda n, first: None
    sums = scan.before(scan.key_sums(), causal)
    return lambda n, first: sums[n, first // BLOCK]


def forward(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> Tensor:
    """See :func:`scan_reference.forward`."""
    scan = _scan(a, b, weight, spec)
    y, (_, length, heads, _) = np.empty_like(scan.a), scan.shape
    before = _sums_before(scan, spec.causal)

    def task(n: int, first: int, last: int) -> None:
        rows, carried = (scan.a, scan.b, scan.weight[n]), scan.carried(before(n, first))
        scan.passes.relate(n * length, first, last, heads, *rows, *carried, y, *scan.options)

    scan.run(task)
    if spec.mean and scan.shape[3] > MAX_SUMMED_WIDTH and not np.isfinite(y).all():
        return scan_reference.forward(a, b, weight, spec)
    return torch.from_numpy(y).view(a.shape)


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """See :func:`scan_reference.backward`."""
    scan = _scan(a, b, weight, spec)
    _, length, heads, width = scan.shape
    da, db, q_sums = np.empty_like(scan.a), np.empty_like(scan.b), scan.sums()
    keys = np.empty((len(scan.b), 2), np.float32)
    grads = grad.float().contiguous().view(scan.a.shape).numpy()
    before = _sums_before(scan, spec.causal)

    def queries(n: int, first: int, last: int) -> None:
        rows, carried = (grads, scan.a, scan.b, scan.weight[n]), scan.carried(before(n, first))
        scratch = (np.empty((heads, size), np.float32) for size in (width, width, 2))
        results = (da, db, keys, q_sums[n])
        scan.passes.query_gradients(
            n * length, first, last, heads, *rows, *carried, *scratch, *results, *scan.options
        )  # fmt: skip

    scan.run(queries)
    after = scan.before(q_sums, spec.causal, reverse=True)

    def key_rows(n: int, first: int, last: int) -> None:
        rows, carried = (scan.b, scan.weight[n], keys), scan.carried(after[n, (last - 1) // BLOCK])
        scan.passes.key_gradients(n * length, first, last, heads, *rows, *carried, q_sums[n], db, spec.causal)

    scan.run(key_rows)
    if spec.mean and width > MAX_SUMMED_WIDTH and not np.isfinite(da).all():
        return scan_reference.backward(grad, a, b, weight, spec)
    return torch.from_numpy(da).view(a.shape), torch.from_numpy(db).view(b.shape)
