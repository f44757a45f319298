"""The pairwise relation on a CPU, compiled with numba: no temporary of the size of the pairs.

Threads process parts of the queries. Each part has its own gradient of the keys, and the number of parts does not
depend on the number of threads, so that the result does not either.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normplace.ops.relation.common import RelationSpec
from normplace.ops.relation.numba_pair_kernels import Kernels, kernels
from normplace.ops.relation.numba_scan_kernels import lanes_for
from normplace.ops.relation.pair_reference import masked_inputs
from normplace.ops.threads import run_blocks

# Parts of all sequences together that are enough for any number of threads, the least queries of one, and most elements
# of their gradients of keys.
PARTS, MIN_QUERIES, BUDGET = 16, 32, 1 << 25


class _Pairs(NamedTuple):
    """The arguments of the loops for some inputs, and how the work is divided among threads."""

    passes: Kernels
    rows: tuple[np.ndarray, ...]
    """a, b, both centred, and the means of their squares."""
    weight: np.ndarray
    """B × T."""
    shape: tuple[int, int, int, int]
    """B, T, heads, channels of a head."""
    pieces: list[tuple[int, int, int]]
    """Number of the part, first query and end."""
    options: tuple[Any, ...]

    def run(self, task: Any) -> None:
        """Call a task with sequence, part, first query and end."""
        blocks = [(n, *piece) for n in range(self.shape[0]) for piece in self.pieces]
        run_blocks(task, blocks, torch.get_num_threads())


def _pairs(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> _Pairs:
    batch, length, channels = a.shape
    width = channels // spec.heads
    lanes = lanes_for(width)
    passes = kernels(lanes, width % lanes == 0)
    a, b, weight = masked_inputs(a, b, weight)
    rows = [x.reshape(-1, width).numpy() for x in (a, b)]
    centred, squares = [np.empty_like(x) for x in rows], [np.empty(len(x), np.float32) for x in rows]
    for x, out, square in zip(rows, centred, squares, strict=True):
        passes.centre(x, out, square)
    count = max(1, min(-(-PARTS // batch), length // MIN_QUERIES, BUDGET // a.numel()))
    # Of equal numbers of pairs: a query of a causal relation has as many keys as rows before it.
    ends = [round(length * (math.sqrt if spec.causal else float)(n / count)) for n in range(count + 1)]
    return _Pairs(
        passes,
        (*rows, *centred, *squares),
        weight.float().contiguous().numpy(),
        (batch, length, spec.heads, width),
        [(n, ends[n], ends[n + 1]) for n in range(count)],
        (spec.causal, np.float32(spec.eps)),
    )


def forward(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> Tensor:
    """See :func:`pair_reference.forward`."""
    pairs = _pairs(a, b, weight, spec)
    y = np.zeros_like(pairs.rows[0])
    _, length, heads, _ = pairs.shape

    def task(n: int, part: int, first: int, last: int) -> None:
        del part
        pairs.passes.relate(n * length, first, last, heads, *pairs.rows, pairs.weight[n], y, *pairs.options)

    pairs.run(task)
    return torch.from_numpy(y).view(a.shape)


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """See :func:`pair_reference.backward`."""
    pairs = _pairs(a, b, weight, spec)
    batch, length, heads, width = pairs.shape
    da = np.zeros_like(pairs.rows[0])
    db = np.zeros((batch, len(pairs.pieces), length * heads, width), np.float32)
    grads = grad.float().contiguous().view(da.shape).numpy()

    def task(n: int, part: int, first: int, last: int) -> None:
        results = (da, db[n, part])
        rows = (grads, *pairs.rows, pairs.weight[n])
        pairs.passes.gradients(n * length, first, last, heads, *rows, *results, *pairs.options)

    pairs.run(task)
    # The gradient through the mean of each pair.
    gradients = (torch.from_numpy(x).view(batch, length, heads, width) for x in (da, db.sum(1)))
    da, db = (x.sub_(x.mean(-1, keepdim=True)).view(a.shape) for x in gradients)
    return da, db
