"""Generalized aggregation of a tiny graph on a CPU: the operations of the reference with little overhead.

A graph with few edges and channels takes as long as the calls of its operations. The indices of its edges are prepared
once for all layers, all rows are one chunk, and intermediate results are overwritten. Mean, maximum and minimum skip
the weights that are known. Operations that remain, and the order of sums, are those of
:mod:`normplace.ops.aggregate.reference`, so the results have the same bits.

The forward pass reduces over the edges of a row. It reads the rows by falling number of edges, and first the first edge
of every row, then the second edge of every row that has one, and so on. Each step of a reduction is then one operation
on contiguous memory.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.ops.aggregate import reference
from normplace.ops.aggregate.neighbours import CSRDirection, CSRGraph
from normplace.ops.aggregate.reference import (
    PSI_NEAR,
    PSI_SERIES,
    AggregateGradMask,
    AggregateGrads,
    AggregateInputs,
    AggregateSpec,
)

# A smaller exponential is zero in every dtype, so that the gradient of a weight is zero too.
FLAT = -1000.0
# Rows with more edges would take as many steps: the reference computes the forward pass of their graph.
LONGEST = 64


class Edges(NamedTuple):
    """Edges in some order, as indices that PyTorch's operations read without conversion."""

    sources: Tensor
    positions: Tensor
    """The position of each edge in the original ``edge_index``."""


class EdgeLayout(NamedTuple):
    """The edges of a graph for both passes."""

    by_row: Edges
    """Sorted by target."""
    targets: Tensor
    """The target of each edge, sorted by target."""
    degree: Tensor
    """Number of edges of each target, as a column."""
    by_step: Edges
    """Edges in the order of the forward pass."""
    steps: tuple[tuple[int, int], ...]
    """First edge and end of each step after the first one."""
    has_long_rows: bool
    """Whether there are no steps, because they would be too many."""
    num_rows: int
    """Number of targets that have edges."""
    lengths: Tensor
    """Their number of edges, in the order of the forward pass, as a column."""
    places: Tensor
    """Their places in the order of the forward pass; if some targets have no edges, the others in that order."""

    @classmethod
    def of(cls, arriving: CSRDirection) -> EdgeLayout:
        """From the arriving edges."""
        indptr, sources, positions = (tensor.numpy().astype(np.int64) for tensor in arriving[:3])
        count = np.diff(indptr)
        rows = np.argsort(-count, kind="stable")[: np.count_nonzero(count)]
        lengths = count[rows]
        is_long = bool(lengths[0] > LONGEST)
        sizes = np.searchsorted(-lengths, -np.arange(1 if is_long else lengths[0]))
        ends = sizes.cumsum().tolist()
        order = np.concatenate([indptr[rows[:size]] + step for step, size in enumerate(sizes)])
        return cls(
            Edges(torch.from_numpy(sources), torch.from_numpy(positions)),
            torch.from_numpy(np.repeat(np.arange(len(count)), count)),
            torch.from_numpy(count[:, None]),
            Edges(torch.from_numpy(sources[order]), torch.from_numpy(positions[order])),
            tuple(itertools.pairwise(ends)),
            is_long,
            len(rows),
            torch.from_numpy(lengths[:, None]),
            torch.from_numpy(rows.argsort() if len(rows) == len(count) else rows),
        )

    def in_order(self, result: Tensor) -> Tensor:
        """A result of the forward pass in the order of the targets, with zeros for targets without edges."""
        if self.num_rows == self.degree.shape[0]:
            return result.index_select(0, self.places)
        return result.new_zeros(self.degree.shape[0], result.shape[1]).index_copy_(0, self.places, result)


# All layers of a network read the same graph. Keys are the ``indptr`` of arriving edges.
_layouts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _layout(graph: CSRGraph) -> EdgeLayout:
    layout = _layouts.get(graph.arriving.indptr)
    if layout is None:
        layout = _layouts[graph.arriving.indptr] = EdgeLayout.of(graph.arriving)
    return layout


def _preactivation(inputs: AggregateInputs, edges: Edges, spec: AggregateSpec) -> Tensor:
    """``x_j + e_ij`` of every edge."""
    x, _, edge, weight = inputs
    sent = x.index_select(0, edges.sources)
    if edge is None:
        return sent
    terms = edge.index_select(0, edges.positions)
    if spec.edge_kind == "dense":
        return sent.add_(terms)
    assert weight is not None
    return sent.add_(terms @ weight if spec.edge_kind == "linear" else weight.index_select(0, terms.long()))


def _activate(preactivation: Tensor, spec: AggregateSpec) -> Tensor:
    """The message ``relu(x_j + e_ij) + eps``, in place."""
    return (preactivation.relu_() if spec.relu else preactivation).add_(spec.eps)


def _reduced(reduction: np.ufunc, first: Tensor, terms: Tensor, layout: EdgeLayout) -> Tensor:
    """The reduction of each row, in place, from the terms of the first step and of all others."""
    results, values = first.numpy(), terms.numpy()
    for start, end in layout.steps:
        part = results[: end - start]
        reduction(part, values[start:end], out=part)
    return first


def _sums(terms: Tensor, layout: EdgeLayout) -> Tensor:
    """Sums of the terms of each row in float64."""
    first = terms[: layout.num_rows].to(torch.float64, copy=True)
    return _reduced(np.add, first, terms, layout).to(terms.dtype)


def _extreme(value: Tensor, layout: EdgeLayout, smallest: bool) -> Tensor:
    """The largest or the smallest value of each row."""
    return _reduced(np.minimum if smallest else np.maximum, value[: layout.num_rows].clone(), value, layout)


def _subtract(value: Tensor, pivot: Tensor, layout: EdgeLayout) -> Tensor:
    """The value of each edge minus that of its row, in place."""
    values, pivots = value.numpy(), pivot.numpy()
    values[: layout.num_rows] -= pivots
    for start, end in layout.steps:
        part = values[start:end]
        np.subtract(part, pivots[: end - start], out=part)
    return value


def _ratio(numerator: Tensor, u: Tensor) -> Tensor:
    """``numerator / u``, 1 where u is zero; overwrites the numerator."""
    return numerator.div_(u).masked_fill_(u == 0, 1)


def forward(
    inputs: AggregateInputs, graph: CSRGraph, spec: AggregateSpec, *, training: bool = True
) -> tuple[Tensor, ...]:
    """See :func:`reference.forward`; without its second result if not ``training``."""
    layout, t = _layout(graph), inputs.exponent.item()
    if layout.has_long_rows or (math.isinf(t) and not spec.relu):
        return reference.forward(inputs, graph, spec)
    value = _activate(_preactivation(inputs, layout.by_step, spec), spec)
    if spec.kind == "power":
        value.log_()
    with np.errstate(all="ignore"):
        top = _extreme(value, layout, t < 0)
        # Infinite messages are special cases of the reference. No other message exceeds a finite maximum.
        if not math.isfinite((value if t == -math.inf else top).sum().item()):
            return reference.forward(inputs, graph, spec)
        lower = _subtract(value, top, layout)
        if spec.kind == "power":
            results = _power_mean(lower, top, layout, t)
        elif t == 0 and spec.relu:
            results = _mean(lower, top, layout, training)
        elif math.isinf(t):
            results = _hard(lower, top, layout, training)
        else:
            results = _softmax(lower, top, layout, t, training)
    return tuple(map(layout.in_order, results))


def _softmax(lower: Tensor, top: Tensor, layout: EdgeLayout, t: float, training: bool) -> tuple[Tensor, ...]:
    """From the messages minus the pivot of their row, and the pivots; so the functions below."""
    z = (lower * t).exp_()
    total = _sums(z, layout)
    y = _sums(lower.mul_(z), layout).div_(total).add_(top)
    return (y, total.log_().add_((top - y).mul_(t))) if training else (y,)


def _mean(lower: Tensor, top: Tensor, layout: EdgeLayout, training: bool) -> tuple[Tensor, ...]:
    """The softmax of temperature zero: every weight is 1."""
    count = layout.lengths.to(lower.dtype)
    y = _sums(lower, layout).div_(count).add_(top)
    return (y, count.log_().expand_as(y)) if training else (y,)


def _hard(lower: Tensor, top: Tensor, layout: EdgeLayout, training: bool) -> tuple[Tensor, ...]:
    """The softmax of infinite temperature: a weight is 1 or 0."""
    return (top, _sums((lower == 0).to(lower.dtype), layout).log_()) if training else (top,)


def _power_mean(lower: Tensor, top: Tensor, layout: EdgeLayout, p: float) -> tuple[Tensor, Tensor]:
    """From logarithms of messages; see :func:`reference.log_mean`."""
    d = lower * p
    mean = _sums(d.exp(), layout).div_(layout.lengths)
    excess = _sums(_ratio(d.expm1(), d).mul_(lower), layout).div_(layout.lengths)
    u = excess * p
    near = _ratio(u.log1p(), u).mul_(excess)
    k = torch.where(mean < 0.5, mean.log().div_(p), near).add_(top)
    return k.exp(), k


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
    layout, t = _layout(graph), inputs.exponent.item()
    x, _, edge, weight = inputs
    m = _preactivation(inputs, layout.by_row, spec)
    silent = (m > 0).logical_not_() if spec.relu else None
    if spec.kind == "power":
        dm, d_exponent = _power_gradient(grad, _activate(m, spec), layout, t, y, k, needs)
    elif t == 0 and spec.relu and not needs.exponent:
        dm, d_exponent = k.neg().exp_().mul_(grad).index_select(0, layout.targets), None
    else:
        dm, d_exponent = _softmax_gradient(grad, _activate(m, spec), layout, t, y, k, spec, needs)
    if silent is not None:
        dm.masked_fill_(silent, 0)
    dx = torch.zeros_like(x).index_add_(0, layout.by_row.sources, dm)
    d_edge = d_weight = None
    if edge is not None:
        if needs.edge:
            d_edge = torch.empty_like(edge).index_copy_(0, layout.by_row.positions, dm)
        if needs.weight and weight is not None:
            terms = edge.index_select(0, layout.by_row.positions)
            if spec.edge_kind == "linear":
                d_weight = terms.T @ dm
            else:
                d_weight = torch.zeros_like(weight).index_add_(0, terms.long(), dm)
    if d_exponent is not None:
        d_exponent = d_exponent.to(inputs.exponent.dtype)
    return AggregateGrads(dx, d_exponent, d_edge, d_weight)


def _softmax_gradient(
    grad: Tensor,
    m: Tensor,
    layout: EdgeLayout,
    t: float,
    y: Tensor,
    k: Tensor,
    spec: AggregateSpec,
    needs: AggregateGradMask,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the messages and of the temperature."""
    lower = m.sub_(y.index_select(0, layout.targets))
    d = lower * t
    if math.isinf(t):
        d.masked_fill_(lower == 0, 0)
    a = (d - k.index_select(0, layout.targets)).exp_().mul_(grad.index_select(0, layout.targets))
    d_exponent = lower.square_().mul_(a).sum(dtype=torch.float64) if needs.exponent else None
    return a if spec.semi_gradient else d.clamp_(min=FLAT).add_(1).mul_(a), d_exponent


def _power_gradient(
    grad: Tensor, m: Tensor, layout: EdgeLayout, p: float, y: Tensor, k: Tensor, needs: AggregateGradMask
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the messages and of the power."""
    d = m.log_().sub_(k.index_select(0, layout.targets))
    share = (grad / layout.degree).index_select(0, layout.targets)
    d_exponent = None
    if needs.exponent:
        weighted = (share * y.index_select(0, layout.targets)).mul_(d.square())
        d_exponent = weighted.mul_(_psi(d * p)).sum(dtype=torch.float64)
    return d.mul_(p - 1).exp_().mul_(share), d_exponent


def _psi(u: Tensor) -> Tensor:
    """:func:`reference.psi`."""
    first, *others = PSI_SERIES
    series = torch.full_like(u, first)
    for coefficient in others:
        series.mul_(u).add_(coefficient)
    far = u.exp().sub_(_ratio(u.expm1(), u)).div_(u)
    return torch.where(u.abs() < PSI_NEAR, series, far)
