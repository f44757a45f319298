"""Generalized aggregation on a CPU, compiled with numba: no temporary of the size of the edges.

Threads process blocks of rows. The backward pass follows the edges that leave each node, and sums over the whole graph
are kept per block. No two threads write to one place, and the result does not depend on the number of threads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.ops.aggregate.neighbours import CSRDirection, CSRGraph
from normplace.ops.aggregate.numba_kernels import Kernels, kernels, lanes_for
from normplace.ops.aggregate.reference import AggregateGradMask, AggregateGrads, AggregateInputs, AggregateSpec
from normplace.ops.threads import run_blocks

# Least elements of a block, about a tenth of a millisecond of work, and most blocks. Neither depends on the number of
# threads, so that sums over blocks do not.
GRAIN = 1 << 18
MAX_BLOCKS = 64


Blocks = list[tuple[int, int, int]]
# All layers of a network read the same graph. Keys are ``indptr`` tensors, values lists by number of blocks.
_known_blocks: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _blocks(direction: CSRDirection, channels: int) -> Blocks:
    """Number, first row and end of blocks of about equal numbers of rows and edges."""
    number = _num_blocks(direction.num_edges + direction.num_rows, channels)
    if number == 1:
        return [(0, 0, direction.num_rows)]
    by_number: dict[int, Blocks] | None = _known_blocks.get(direction.indptr)
    if by_number is None:
        by_number = _known_blocks[direction.indptr] = {}
    if number not in by_number:
        indptr = direction.indptr.numpy()
        by_number[number] = _cut(indptr.astype(np.int64) + np.arange(len(indptr)), number)
    return by_number[number]


@functools.lru_cache(64)
def _even_blocks(rows: int, channels: int) -> Blocks:
    """The same for rows that have one edge each."""
    return _cut(2 * np.arange(rows + 1), _num_blocks(2 * rows, channels))


def _num_blocks(cost: int, channels: int) -> int:
    return max(1, min(MAX_BLOCKS, cost * channels // GRAIN))


def _cut(cost: np.ndarray, number: int) -> Blocks:
    """Blocks of about equal cost, from the cost before each row and at the end."""
    if number == 1:
        return [(0, 0, len(cost) - 1)]
    bounds = np.unique(np.searchsorted(cost, np.linspace(0, cost[-1], number + 1))).tolist()
    return [(n, first, last) for n, (first, last) in enumerate(itertools.pairwise(bounds))]


def _run(task: Callable[[int, int, int], None], blocks: Blocks) -> None:
    run_blocks(task, blocks, torch.get_num_threads())


def _kernels(x: Tensor, spec: AggregateSpec) -> Kernels:
    dtype, channels = x.numpy().dtype, x.shape[1]
    lanes = lanes_for(channels, dtype)
    return kernels(dtype, spec.kind, spec.edge_kind, lanes, channels % lanes == 0)


def _edges(inputs: AggregateInputs, spec: AggregateSpec, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Edge rows, edge ids and weights; empty arrays for those that the edge kind does not have."""
    rows, ids, weights = np.empty((0, 0), dtype), np.empty((0, 1), np.int64), np.empty((0, 0), dtype)
    if inputs.edge is not None and spec.edge_kind == "table":
        ids = inputs.edge.numpy().astype(np.int64, copy=False)[:, None]
    elif inputs.edge is not None:
        rows = inputs.edge.numpy()
    return rows, ids, weights if inputs.weight is None else inputs.weight.numpy()


def forward(inputs: AggregateInputs, graph: CSRGraph, spec: AggregateSpec) -> tuple[Tensor, Tensor]:
    """See :func:`reference.forward`."""
    x = inputs.x
    passes, values = _kernels(x, spec), x.numpy()
    real = values.dtype.type
    indptr, indices, edges = (tensor.numpy() for tensor in graph.arriving[:3])
    y = torch.empty(len(indptr) - 1, x.shape[1], dtype=x.dtype)
    k = torch.empty_like(y)
    blocks, out, message = (_blocks(graph.arriving, x.shape[1]), (y.numpy(), k.numpy()), (spec.relu, real(spec.eps)))
    if spec.kind == "power" and spec.edge_kind == "none":  # a message and its logarithm depend on the source alone
        sent, values = values, np.empty_like(values)
        sources = _even_blocks(len(sent), x.shape[1])
        _run(lambda n, first, last: passes.logs(first, last, sent, values, *message), sources)
        message = (False, real(0))
    arrays = (values, real(inputs.exponent.item()), *_edges(inputs, spec, values.dtype))
    _run(lambda n, first, last: passes.forward(first, last, *arrays, indptr, indices, edges, *out, *message), blocks)
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
    passes, values = _kernels(x, spec), x.numpy()
    real = values.dtype.type
    indptr, indices, edges = (tensor.numpy() for tensor in graph.leaving[:3])
    arrivals, pulled = graph.arriving.indptr.numpy(), np.empty_like(grad.numpy())
    targets = _even_blocks(len(arrivals) - 1, x.shape[1])
    _run(lambda n, first, last: passes.pull(first, last, grad.numpy(), k.numpy(), arrivals, pulled), targets)

    blocks = _blocks(graph.leaving, x.shape[1])
    dx = torch.empty_like(x)
    d_edge = torch.empty_like(edge) if needs.edge and edge is not None else x.new_empty(0, 0)
    size = weight.shape if needs.weight and weight is not None else (0, 0)
    d_weight, d_exponent = np.zeros((len(blocks), *size), values.dtype), np.zeros((len(blocks), 1))
    arrays = (pulled, values, real(exponent.item()), *_edges(inputs, spec, values.dtype))
    results = (indptr, indices, edges, y.numpy(), k.numpy(), dx.numpy(), d_edge.numpy())
    options = (spec.relu, real(spec.eps), spec.semi_gradient, needs.exponent)

    def block(n: int, first: int, last: int) -> None:
        passes.backward(first, last, *arrays, *results, d_weight[n], d_exponent[n], *options)

    _run(block, blocks)
    return AggregateGrads(
        dx,
        exponent.new_tensor(d_exponent.sum()) if needs.exponent else None,
        d_edge if needs.edge else None,
        torch.from_numpy(d_weight.sum(0)) if needs.weight else None,
    )
