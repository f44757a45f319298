"""Generalized aggregation in plain PyTorch: the definition, the test oracle, and the path that always works.

Row i aggregates, channel by channel, the messages of the edges that arrive::

    m_ij = relu(x_j + e_ij) + eps        (with relu and the edge term e only if requested)

Softmax (Li et al. 2020, arXiv 2006.07739) with inverse temperature t::

    a_ij = exp(t m_ij) / sum_j exp(t m_ij)        y_i = sum_j a_ij m_ij

The forward pass keeps y and the entropy ``k_i = log sum_j exp(t (m_ij - y_i))`` of the weights. With these two,
``a_ij = exp(t (m_ij - y_i) - k_i)`` avoids the large numbers ``t m`` and their log-sum, and::

    dy_i/dm_ij = a_ij (1 + t (m_ij - y_i))        dy_i/dt = sum_j a_ij (m_ij - y_i)²

t = infinity is the maximum and t = -infinity the minimum, with ties sharing the gradient; t = 0 is the mean.

Power mean with power p over n positive messages::

    y_i = (sum_j m_ij^p / n)^(1/p), the geometric mean at p = 0

The forward pass keeps k_i = log y_i. With ``d_ij = log m_ij - k_i``::

    dy_i/dm_ij = exp((p - 1) d_ij) / n            dy_i/dp = y_i / n sum_j d_ij² psi(p d_ij)

where ``psi(u) = (u e^u - e^u + 1) / u²``. Every term of the last sum is positive, so nothing cancels for any p.

No temporary has the size edges × channels: rows are processed in chunks, and a chunk of one long row in spans of
channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.aggregate.neighbours import PIECE, CSRDirection, CSRGraph
from normplace.ops.features import compute_dtype

# Elements of the largest temporary, so that it stays in the cache of one core.
BUDGET = 1 << 18


class AggregateSpec(NamedTuple):
    """Every argument of an aggregation that is not a tensor."""

    kind: str = "softmax"
    """``softmax`` or ``power``."""
    edge_kind: str = "none"
    """``none``, ``dense`` (E × D), ``linear`` (E × K features, K × D weights) or ``table`` (E ids of K × D rows)."""
    relu: bool = False
    eps: float = 0.0
    semi_gradient: bool = False
    """Treat the softmax weights as constants in the backward pass."""
    piece: int = PIECE
    """Most edges that one program of a GPU kernel processes."""
    backend: str = "auto"


class AggregateInputs(NamedTuple):
    """The tensors of an aggregation, apart from the graph."""

    x: Tensor
    exponent: Tensor
    """Temperature or power: 0-dimensional, or one for each channel."""
    edge: Tensor | None = None
    """Dense terms, features or ids, by :attr:`AggregateSpec.edge_kind`."""
    weight: Tensor | None = None
    """K × D weights of features, or table of K rows."""


class AggregateGrads(NamedTuple):
    """Gradients of :class:`AggregateInputs`; None where not needed."""

    x: Tensor
    exponent: Tensor | None = None
    edge: Tensor | None = None
    weight: Tensor | None = None


class AggregateGradMask(NamedTuple):
    """Which gradients are needed; that of x is always computed."""

    x: bool
    exponent: bool
    edge: bool
    weight: bool


def expm1_ratio(u: Tensor) -> Tensor:
    """``(exp(u) - 1) / u``, 1 at zero."""
    return torch.where(u == 0, 1, torch.expm1(u) / u)


def log1p_ratio(u: Tensor) -> Tensor:
    """``log(1 + u) / u``, 1 at zero."""
    return torch.where(u == 0, 1, torch.log1p(u) / u)


def psi(u: Tensor) -> Tensor:
    """``(u exp(u) - exp(u) + 1) / u²``, 1/2 at zero."""
    series = torch.zeros_like(u)
    for coefficient in PSI_SERIES:
        series = series * u + coefficient
    return torch.where(u.abs() < PSI_NEAR, series, (torch.exp(u) - expm1_ratio(u)) / u)


# 1 / (k! (k + 2)) from k = 10 down to 0; below 1/4 the remainder is under the last digit of float64.
PSI_SERIES = (
    1 / 43545600, 1 / 3991680, 1 / 403200, 1 / 45360, 1 / 5760, 1 / 840, 1 / 144, 1 / 30, 1 / 8, 1 / 3, 1 / 2,
)  # fmt: skip
PSI_NEAR = 0.25


def log_mean(pivot: Tensor, total: Tensor, excess: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """The log of the power mean, from sums relative to a pivot.

    Args:
        pivot: A value of log m.
        total: Sum of ``exp(p (log m - pivot))``.
        excess: Sum of ``(exp(p (log m - pivot)) - 1) / p``, which stays accurate for small p.
        n: Number of messages.
        p: The power.
    """
    mean, excess = total / n, excess / n
    return pivot + torch.where(mean < 0.5, torch.log(mean) / p, excess * log1p_ratio(p * excess))


def gap(t: Tensor, m: Tensor, pivot: Tensor) -> Tensor:
    """``t (m - pivot)``; zero where both are equal, even if t is infinite."""
    return torch.where(m == pivot, 0, t * (m - pivot))


def _chunks(direction: CSRDirection, channels: int) -> Iterator[tuple[int, int, slice, slice]]:
    """First and last row, edges and channels of chunks whose temporaries fit in the budget."""
    indptr = direction.indptr.tolist()
    rows, first = len(indptr) - 1, 0
    while first < rows:
        last = first + 1
        while last < rows and (indptr[last + 1] - indptr[first]) * channels <= BUDGET:
            last += 1
        edges = slice(indptr[first], indptr[last])
        width = max(1, min(channels, BUDGET // max(1, edges.stop - edges.start)))
        for channel in range(0, channels, width):
            yield first, last, edges, slice(channel, channel + width)
        first = last


def _preactivation(
    inputs: AggregateInputs, direction: CSRDirection, spec: AggregateSpec, edges: slice, channels: slice
) -> Tensor:
    """``x_j + e_ij`` of a span of edges and channels."""
    x, _, edge, weight = inputs
    sent = x[direction.indices[edges].long(), channels].to(compute_dtype(x.dtype))
    if edge is None:
        return sent
    ids = direction.edges[edges].long()
    if spec.edge_kind == "dense":
        return sent + edge[ids, channels]
    assert weight is not None
    if spec.edge_kind == "linear":
        return sent + edge[ids].to(sent.dtype) @ weight[:, channels].to(sent.dtype)
    return sent + weight[edge[ids].long(), channels]


def activation(preactivation: Tensor, spec: AggregateSpec) -> Tensor:
    """The message ``relu(x_j + e_ij) + eps``."""
    return (preactivation.relu() if spec.relu else preactivation) + spec.eps


def messages(inputs: AggregateInputs, direction: CSRDirection, spec: AggregateSpec) -> Tensor:
    """The messages of all edges, in CSR order."""
    return activation(_preactivation(inputs, direction, spec, slice(None), slice(None)), spec)


def sums(terms: Tensor, row: Tensor, like: Tensor) -> Tensor:
    """Sums of the terms of each row, in float64 where the device supports it, because a hub has many terms."""
    total = like if like.device.type == "mps" else like.double()
    return total.index_add(0, row, terms.to(total.dtype)).to(like.dtype)


def of_channels(exponent: Tensor, channels: slice) -> Tensor:
    """The part of an exponent, or of its gradient, that belongs to some channels."""
    return exponent if exponent.dim() == 0 else exponent[channels]


def sum_like(exponent: Tensor, terms: Tensor) -> Tensor:
    """Sums of the terms of an exponent's gradient in float64: one, or one for each channel."""
    return terms.sum(dtype=torch.float64) if exponent.dim() == 0 else terms.sum(0, dtype=torch.float64)


def segments(direction: CSRDirection, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The row of each edge of a range of rows, counted from its first, and the number of edges of each row."""
    count = direction.indptr[first : last + 1].diff().long()
    return torch.arange(last - first, device=count.device).repeat_interleave(count), count


def forward(inputs: AggregateInputs, graph: CSRGraph, spec: AggregateSpec) -> tuple[Tensor, Tensor]:
    """The aggregate of every row, and what the backward pass needs: the entropy, or the log of the power mean."""
    x = inputs.x
    arriving = graph.arriving
    channels = x.shape[1]
    y = torch.zeros(arriving.num_rows, channels, dtype=compute_dtype(x.dtype), device=x.device)
    k = torch.zeros_like(y)
    for first, last, edges, cols in _chunks(arriving, channels):
        row, count = segments(arriving, first, last)
        exponent = of_channels(inputs.exponent, cols)
        nonempty = (count > 0)[:, None]
        m = activation(_preactivation(inputs, arriving, spec, edges, cols), spec)
        value = m if spec.kind == "softmax" else m.log()
        index = row[:, None].expand_as(value)
        blank = value.new_zeros(last - first, value.shape[1])
        top = torch.where(
            exponent < 0,
            blank.scatter_reduce(0, index, value, "amin", include_self=False),
            blank.scatter_reduce(0, index, value, "amax", include_self=False),
        )
        d = gap(exponent, value, top[row])
        z = d.exp()
        total = sums(z, row, blank)
        if spec.kind == "softmax":
            lift = sums(z * (value - top[row]), row, blank) / total
            y[first:last, cols] = torch.where(nonempty, top + lift, 0)
            k[first:last, cols] = torch.where(nonempty, total.log() + gap(exponent, top, top + lift), 0)
        else:
            excess = sums((value - top[row]) * expm1_ratio(d), row, blank)
            log_y = log_mean(top, total, excess, count[:, None], exponent)
            y[first:last, cols] = torch.where(nonempty, log_y.exp(), 0)
            k[first:last, cols] = torch.where(nonempty, log_y, 0)
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
    """Gradients of the inputs of :func:`forward`.

    Args:
        grad: Gradient of the aggregate.
        inputs: As :func:`forward` read them.
        graph: As :func:`forward` read it.
        y: The aggregate.
        k: The second result of :func:`forward`.
        spec: As :func:`forward` read it.
        needs: Which gradients to compute.
    """
    x, _, edge, weight = inputs
    arriving = graph.arriving
    dx = torch.zeros(x.shape, dtype=y.dtype, device=x.device)
    d_exponent = torch.zeros(inputs.exponent.shape, dtype=torch.float64, device=x.device)
    d_edge = torch.zeros_like(edge) if needs.edge and edge is not None else None
    d_weight = (
        torch.zeros(weight.shape, dtype=y.dtype, device=x.device) if needs.weight and weight is not None else None
    )
    for first, last, edges, cols in _chunks(arriving, x.shape[1]):
        row, count = segments(arriving, first, last)
        exponent, d_exponent_here = of_channels(inputs.exponent, cols), of_channels(d_exponent, cols)
        before = _preactivation(inputs, arriving, spec, edges, cols)
        m = activation(before, spec)
        row_grad, row_y, row_k = (tensor[first:last, cols][row] for tensor in (grad, y, k))
        if spec.kind == "softmax":
            d = gap(exponent, m, row_y)
            a = row_grad * torch.exp(d - row_k)
            dm = a if spec.semi_gradient else torch.where(d.isinf(), 0, a * (1 + d))
            if needs.exponent:
                # The square of a difference without a weight may be infinite.
                terms = torch.where(a == 0, 0, a * (m - row_y) ** 2)
                d_exponent_here += sum_like(d_exponent_here, terms)
        else:
            d, share = m.log() - row_k, row_grad / count[row][:, None]
            dm = share * torch.exp((exponent - 1) * d)
            if needs.exponent:
                d_exponent_here += sum_like(d_exponent_here, share * row_y * d**2 * psi(exponent * d))
        if spec.relu:
            dm = torch.where(before > 0, dm, 0)
        dx[:, cols].index_add_(0, arriving.indices[edges].long(), dm)
        ids = arriving.edges[edges].long()
        if d_edge is not None:
            d_edge[ids, cols] = dm.to(d_edge.dtype)
        if d_weight is not None and edge is not None:
            if spec.edge_kind == "linear":
                d_weight[:, cols] += edge[ids].to(dm.dtype).T @ dm
            else:
                d_weight[:, cols].index_add_(0, edge[ids].long(), dm)
    return AggregateGrads(
        dx.to(x.dtype),
        d_exponent.to(inputs.exponent.dtype) if needs.exponent else None,
        d_edge,
        None if d_weight is None or weight is None else d_weight.to(weight.dtype),
    )
