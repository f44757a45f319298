"""Generalized aggregation in plain PyTorch: what the compiled paths must equal, and the path where none of them runs.

Every row i aggregates, channel by channel, the messages of the edges that arrive::

    m_ij = relu(x_j + e_ij) + eps        (relu and the edge term e where asked for)

softmax (Li et al. 2020, arXiv 2006.07739), with inverse temperature t::

    a_ij = exp(t m_ij) / sum_j exp(t m_ij)        y_i = sum_j a_ij m_ij

The forward pass keeps y and the entropy ``k_i = log sum_j exp(t (m_ij - y_i))`` of the weights. From these two,
``a_ij = exp(t (m_ij - y_i) - k_i)`` without the large numbers that ``t m`` and its log-sum would be, and::

    dy_i/dm_ij = a_ij (1 + t (m_ij - y_i))        dy_i/dt = sum_j a_ij (m_ij - y_i)²

An infinite t is the maximum (minus infinity the minimum), ties sharing the gradient; t = 0 is the mean.

power mean, with power p over n messages, all positive::

    y_i = (sum_j m_ij^p / n)^(1/p), the geometric mean at p = 0

kept as k_i = log y_i. With ``d_ij = log m_ij - k_i``::

    dy_i/dm_ij = exp((p - 1) d_ij) / n            dy_i/dp = y_i / n sum_j d_ij² psi(p d_ij)

where ``psi(u) = (u e^u - e^u + 1) / u²``. Every term of the last sum is positive, so nothing cancels, whatever p.

Nothing of the size edges × channels is allocated: rows are taken in pieces, and a piece of one long row in channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.aggregate.neighbours import Half

# Elements of the largest temporary: it stays in the cache of one core.
BUDGET = 1 << 18


@dataclass(frozen=True)
class Rule:
    """Which aggregation of which messages."""

    kind: str = "softmax"
    """``softmax`` or ``power``."""
    edge: str = "none"
    """``none``, ``dense`` (E × D), ``linear`` (E × K features, K × D weights) or ``table`` (E ids of K × D rows)."""
    relu: bool = False
    eps: float = 0.0
    semi: bool = False
    """Take the softmax weights for constants in the backward pass."""


class Grads(NamedTuple):
    """Gradients of what the aggregation read; those not asked for are None."""

    x: Tensor
    exponent: Tensor | None
    edge: Tensor | None
    weight: Tensor | None


class Needs(NamedTuple):
    """Which gradients are asked for beside that of x; ``edge`` is for dense edge terms, ``weight`` for the others."""

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


# 1 / (k! (k + 2)) from k = 10 down to 0; below 1/4 the rest is under the last digit of double precision.
PSI_SERIES = (
    1 / 43545600, 1 / 3991680, 1 / 403200, 1 / 45360, 1 / 5760, 1 / 840, 1 / 144, 1 / 30, 1 / 8, 1 / 3, 1 / 2,
)  # fmt: skip
PSI_NEAR = 0.25


def log_mean(pivot: Tensor, total: Tensor, excess: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """The log of the power mean, from sums taken relative to a pivot.

    Args:
        pivot: A value of log m.
        total: Sum of ``exp(p (log m - pivot))``.
        excess: Sum of ``(exp(p (log m - pivot)) - 1) / p``, which stays exact where p is small.
        n: How many messages.
        p: The power.
    """
    mean, excess = total / n, excess / n
    return pivot + torch.where(mean < 0.5, torch.log(mean) / p, excess * log1p_ratio(p * excess))


def gap(t: Tensor, m: Tensor, pivot: Tensor) -> Tensor:
    """``t (m - pivot)``, zero where they are equal even if t is infinite."""
    return torch.where(m == pivot, 0, t * (m - pivot))


def _pieces(half: Half, channels: int) -> Iterator[tuple[int, int, slice, slice]]:
    """First and last row, edges and channels of pieces whose temporaries fit in the budget."""
    indptr = half.indptr.tolist()
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


def _before(
    x: Tensor, half: Half, edges: Tensor | None, weight: Tensor | None, rule: Rule, span: slice, cols: slice
) -> Tensor:
    """``x_j + e_ij`` of a span of edges and channels."""
    sent = x[half.indices[span].long(), cols].to(_wide(x))
    if edges is None:
        return sent
    ids = half.edges[span].long()
    if rule.edge == "dense":
        return sent + edges[ids, cols]
    assert weight is not None
    if rule.edge == "linear":
        return sent + edges[ids].to(sent.dtype) @ weight[:, cols].to(sent.dtype)
    return sent + weight[edges[ids].long(), cols]


def _message(before: Tensor, rule: Rule) -> Tensor:
    return (before.relu() if rule.relu else before) + rule.eps


def messages(x: Tensor, half: Half, edges: Tensor | None, weight: Tensor | None, rule: Rule) -> Tensor:
    """The messages of all edges, in the order of the rows."""
    return _message(_before(x, half, edges, weight, rule, slice(None), slice(None)), rule)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def sums(terms: Tensor, row: Tensor, like: Tensor) -> Tensor:
    """Sums of the terms of each row, in double precision where the device has it: a hub has many."""
    kept = like if like.device.type == "mps" else like.double()
    return kept.index_add(0, row, terms.to(kept.dtype)).to(like.dtype)


def segments(half: Half, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The row of each edge of a span, counted from its first, and the number of edges of each row."""
    count = half.indptr[first : last + 1].diff().long()
    return torch.arange(last - first, device=count.device).repeat_interleave(count), count


def forward(
    x: Tensor, exponent: Tensor, edge: Tensor | None, weight: Tensor | None, arriving: Half, rule: Rule
) -> tuple[Tensor, Tensor]:
    """The aggregate of every row, and what the backward pass needs: the entropy, or the log of the power mean."""
    rows, channels = len(arriving.indptr) - 1, x.shape[1]
    y = torch.zeros(rows, channels, dtype=_wide(x), device=x.device)
    k = torch.zeros_like(y)
    for first, last, span, cols in _pieces(arriving, channels):
        row, count = segments(arriving, first, last)
        there = (count > 0)[:, None]
        m = _message(_before(x, arriving, edge, weight, rule, span, cols), rule)
        value = m if rule.kind == "softmax" else m.log()
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
        if rule.kind == "softmax":
            lift = sums(z * (value - top[row]), row, blank) / total
            y[first:last, cols] = torch.where(there, top + lift, 0)
            k[first:last, cols] = torch.where(there, total.log() + gap(exponent, top, top + lift), 0)
        else:
            excess = sums((value - top[row]) * expm1_ratio(d), row, blank)
            log_y = log_mean(top, total, excess, count[:, None], exponent)
            y[first:last, cols] = torch.where(there, log_y.exp(), 0)
            k[first:last, cols] = torch.where(there, log_y, 0)
    return y, k


def backward(
    grad: Tensor,
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    arriving: Half,
    y: Tensor,
    k: Tensor,
    rule: Rule,
    needs: Needs,
) -> Grads:
    """Gradients of what :func:`forward` read, given that of its first result."""
    dx = torch.zeros(x.shape, dtype=y.dtype, device=x.device)
    d_exponent = torch.zeros((), dtype=torch.float64, device=x.device)
    d_edge = torch.zeros_like(edge) if needs.edge and edge is not None else None
    d_weight = (
        torch.zeros(weight.shape, dtype=y.dtype, device=x.device) if needs.weight and weight is not None else None
    )
    for first, last, span, cols in _pieces(arriving, x.shape[1]):
        row, count = segments(arriving, first, last)
        before = _before(x, arriving, edge, weight, rule, span, cols)
        m = _message(before, rule)
        g, out, kept = (t[first:last, cols][row] for t in (grad, y, k))
        if rule.kind == "softmax":
            d = gap(exponent, m, out)
            a = g * torch.exp(d - kept)
            dm = a if rule.semi else torch.where(d.isinf(), 0, a * (1 + d))
            if needs.exponent:
                d_exponent += (a * (m - out) ** 2).sum(dtype=torch.float64)
        else:
            d, share = m.log() - kept, g / count[row][:, None]
            dm = share * torch.exp((exponent - 1) * d)
            if needs.exponent:
                d_exponent += (share * out * d**2 * psi(exponent * d)).sum(dtype=torch.float64)
        if rule.relu:
            dm = torch.where(before > 0, dm, 0)
        dx[:, cols].index_add_(0, arriving.indices[span].long(), dm)
        ids = arriving.edges[span].long()
        if d_edge is not None:
            d_edge[ids, cols] = dm.to(d_edge.dtype)
        if d_weight is not None and edge is not None:
            if rule.edge == "linear":
                d_weight[:, cols] += edge[ids].to(dm.dtype).T @ dm
            else:
                d_weight[:, cols].index_add_(0, edge[ids].long(), dm)
    return Grads(
        dx.to(x.dtype),
        d_exponent.to(exponent.dtype) if needs.exponent else None,
        d_edge,
        None if d_weight is None or weight is None else d_weight.to(weight.dtype),
    )
