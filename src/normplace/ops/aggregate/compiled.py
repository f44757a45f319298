"""Generalized aggregation on a CPU, compiled with numba: no temporary of the size of the edges.

Rows are shared out among threads, the backward pass walks the edges that leave each node, and sums over the whole graph
are kept per block of rows: no two threads write to one place and the result does not depend on how many there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from normplace.ops.aggregate.compiled_kernels import Kernels, kernels, lanes_for
from normplace.ops.aggregate.neighbours import Half
from normplace.ops.aggregate.reference import Grads, Needs, Rule
from normplace.ops.aggregate.threads import share

# Elements a block has at least, some tenth of a millisecond of work; and blocks at most. Both are the same for any
# number of threads, so that sums over blocks are.
GRAIN = 1 << 18
MOST_BLOCKS = 64


def _blocks(indptr: np.ndarray, channels: int) -> list[tuple[int, int, int]]:
    """Number, first row and end of blocks of about equal numbers of rows and edges."""
    rows = len(indptr) - 1
    number = min(MOST_BLOCKS, (int(indptr[-1]) + rows) * channels // GRAIN)
    if number <= 1:
        return [(0, 0, rows)]
    cost = indptr.astype(np.int64) + np.arange(rows + 1)
    bounds = np.unique(np.searchsorted(cost, np.linspace(0, cost[-1], number + 1))).tolist()
    return [(n, first, last) for n, (first, last) in enumerate(itertools.pairwise(bounds))]


def _run(task: Callable[[int, int, int], None], blocks: list[tuple[int, int, int]]) -> None:
    share(task, blocks, torch.get_num_threads())


def _kernels(x: Tensor, rule: Rule) -> Kernels:
    dtype, channels = x.numpy().dtype, x.shape[1]
    lanes = lanes_for(channels, dtype)
    return kernels(dtype, rule.kind, rule.edge, lanes, channels % lanes == 0)


def _edges(edge: Tensor | None, weight: Tensor | None, rule: Rule, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Edge rows, edge ids and weights, empty where the rule has none."""
    rows, ids, weights = np.empty((0, 0), dtype), np.empty((0, 1), np.int64), np.empty((0, 0), dtype)
    if edge is not None and rule.edge == "table":
        ids = edge.numpy().astype(np.int64, copy=False)[:, None]
    elif edge is not None:
        rows = edge.numpy()
    return rows, ids, weights if weight is None else weight.numpy()


def forward(
    x: Tensor, exponent: Tensor, edge: Tensor | None, weight: Tensor | None, arriving: Half, rule: Rule
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    passes, values = _kernels(x, rule), x.numpy()
    real = values.dtype.type
    indptr, indices, edges = (t.numpy() for t in arriving[:3])
    y = torch.empty(len(indptr) - 1, x.shape[1], dtype=x.dtype)
    k = torch.empty_like(y)
    blocks, out, message = _blocks(indptr, x.shape[1]), (y.numpy(), k.numpy()), (rule.relu, real(rule.eps))
    if rule.kind == "power" and rule.edge == "none":  # then a message is its source's alone, and so is its logarithm
        sent, values = values, np.empty_like(values)
        sources = _blocks(np.arange(len(sent) + 1), x.shape[1])
        _run(lambda n, first, last: passes.logs(first, last, sent, values, *message), sources)
        message = (False, real(0))
    given = (values, real(exponent.item()), *_edges(edge, weight, rule, values.dtype))
    _run(lambda n, first, last: passes.forward(first, last, *given, indptr, indices, edges, *out, *message), blocks)
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
) -> Grads:
    """As the reference."""
    passes, values = _kernels(x, rule), x.numpy()
    real = values.dtype.type
    indptr, indices, edges = (t.numpy() for t in leaving[:3])
    arrivals, pulled = arriving.indptr.numpy(), np.empty_like(grad.numpy())
    targets = _blocks(np.arange(len(arrivals)), x.shape[1])
    _run(lambda n, first, last: passes.pull(first, last, grad.numpy(), k.numpy(), arrivals, pulled), targets)

    blocks = _blocks(indptr, x.shape[1])
    dx = torch.empty_like(x)
    d_edge = torch.empty_like(edge) if needs.edge and edge is not None else x.new_empty(0, 0)
    size = weight.shape if needs.weight and weight is not None else (0, 0)
    d_weight, d_exponent = np.zeros((len(blocks), *size), values.dtype), np.zeros((len(blocks), 1))
    given = (pulled, values, real(exponent.item()), *_edges(edge, weight, rule, values.dtype))
    kept = (indptr, indices, edges, y.numpy(), k.numpy(), dx.numpy(), d_edge.numpy())
    choice = (rule.relu, real(rule.eps), rule.semi, needs.exponent)

    def block(n: int, first: int, last: int) -> None:
        passes.backward(first, last, *given, *kept, d_weight[n], d_exponent[n], *choice)

    _run(block, blocks)
    return Grads(
        dx,
        exponent.new_tensor(d_exponent.sum()) if needs.exponent else None,
        d_edge if needs.edge else None,
        torch.from_numpy(d_weight.sum(0)) if needs.weight else None,
    )
