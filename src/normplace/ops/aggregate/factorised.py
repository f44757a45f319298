"""Generalized aggregation without edge terms as products with a sparse matrix: the fast path of plain PyTorch.

Without edge terms a message depends on its source alone, so ``exp(t m)`` is computed once per node instead of once per
edge, and sums over neighbours are sparse products, which PyTorch runs with MKL. With ``z = exp(t (m - c))``, where c is
the message of the largest ``t m`` in each channel::

    y = A (z m) / A z        dm = z (Aᵀg' (1 + t (m - b)) - t Aᵀ(g' (y - b))),  g' = g / A z

for any b; the mean of the m that have a weight keeps the difference small. The power mean is one product:
``(A m^p / n)^(1/p)``, and backward ``m^(p-1) Aᵀ(g y^(1-p) / n)``.

Where every neighbour of a row lies far below c, z underflows. Such rows are detected by their sums and recomputed by
the reference, in the forward and the backward pass.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from normplace.ops.aggregate import reference
from normplace.ops.aggregate.neighbours import CSRDirection, CSRGraph
from normplace.ops.aggregate.reference import (
    AggregateGradMask,
    AggregateGrads,
    AggregateInputs,
    AggregateSpec,
    activation,
)

# Rows whose sum is below exp(-REACH) of the channel's largest term are recomputed. What float32 has lost there is under
# 1e-38 / exp(-57), a ten-billionth of the sum, and the reciprocal leaves room for large gradients.
REACH = 57.0
# Above this size of t c, or of c, messages are taken relative to c before they are summed: the last digits of a sum of
# t m would change weights, and sums of numbers near the largest would overflow.
OFFSET, LARGE = 512.0, 1e30
# Longer rows are recomputed too: a product adds a row's terms one by one, and its error grows with their number.
LONGEST = 4096
# The exponential of the negative of this number is zero.
UNDERFLOW = {torch.float32: 104.0, torch.float64: 746.0}
# Below this power the product loses digits that the root amplifies.
LEAST_POWER = 0.5
# The gradient of the exponent is a variance within rows, computed as a difference of sums over the graph. It loses
# digits in proportion to the squared spread over the graph. Above this spread times exponent the reference computes it.
STEEP = 24.0
# It also loses digits where the spread is small compared with messages, or their logarithms. The reference computes it
# if this many of their rounding errors exceed the spread.
FLAT = 3e4


def unsupported_reason(exponent: Tensor, spec: AggregateSpec) -> str | None:
    """Why the messages do not factorise accurately; None if they do."""
    if spec.edge_kind != "none":
        return "messages with edge terms do not factorise"
    size = exponent.abs()
    if bool(size.isinf().any()):
        return "it needs a finite temperature"
    if spec.kind == "power" and bool((size < LEAST_POWER).any()):
        return f"it needs a power of at least {LEAST_POWER} or at most -{LEAST_POWER}"
    return None


def _matrix(direction: CSRDirection, columns: int, dtype: torch.dtype) -> Tensor:
    ones = torch.ones(direction.num_edges, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            direction.indptr, direction.indices, ones, (direction.num_rows, columns), check_invariants=False
        )


def _pivot(value: Tensor, exponent: float | Tensor) -> Tensor:
    """In each channel, the value of the largest ``exponent * value``."""
    if isinstance(exponent, Tensor):
        return torch.where(exponent < 0, value.amin(0), value.amax(0))
    return value.amin(0) if exponent < 0 else value.amax(0)


def _number(exponent: Tensor) -> float | Tensor:
    """An exponent as a number, or as a tensor of one for each channel."""
    return exponent.item() if exponent.dim() == 0 else exponent


def forward(inputs: AggregateInputs, graph: CSRGraph, spec: AggregateSpec) -> tuple[Tensor, Tensor]:
    """See :func:`reference.forward`."""
    x, arriving = inputs.x, graph.arriving
    t = _number(inputs.exponent)
    m = activation(x, spec)
    count = arriving.indptr.diff()[:, None]
    matrix = _matrix(arriving, len(x), x.dtype)
    if spec.kind == "softmax":
        c = _pivot(m, t)
        z = m.sub(c).mul_(t).exp_()
        is_offset = _is_offset(c, t)
        both = matrix @ torch.cat([z, (m.sub_(c) if is_offset else m).mul_(z)], 1)
        total, y = both.split(x.shape[1], 1)
        y = torch.addcdiv(c, y, total) if is_offset else y / total
        log_total = total.log()
        k = torch.sub(c, y).mul_(t).add_(log_total)
    else:
        value = m.log_()
        c = _pivot(value, t)
        total = matrix @ value.sub_(c).mul_(t).exp_()
        log_total = total.log()
        k = (log_total - count.to(x.dtype).log()).div_(t).add_(c)
        y = k.exp()
    empty = count == 0
    y.masked_fill_(empty, 0)
    k.masked_fill_(empty, 0)
    lost = (~(log_total > -REACH).all(1) | (count[:, 0] > LONGEST)) & ~empty[:, 0]
    if lost.any():
        rows = lost.nonzero()[:, 0]
        y[rows], k[rows] = reference.forward(inputs, subset(graph, rows), spec)
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
    x, exponent, arriving = inputs.x, inputs.exponent, graph.arriving

    def by_reference(selected: Tensor) -> AggregateGrads:
        """The part of the gradients that comes from some rows."""
        rows = selected.nonzero()[:, 0]
        return reference.backward(grad[rows], inputs, subset(graph, rows), y[rows], k[rows], spec, needs)

    t = _number(exponent)
    m = activation(x, spec)
    matrix = _matrix(graph.leaving, arriving.num_rows, x.dtype)
    count = arriving.indptr.diff()[:, None]
    d_exponent = None
    if spec.kind == "softmax":
        c, centre = _pivot(m, t), y
        is_offset = _is_offset(c, t)
        if is_offset:
            m, centre, c = m.sub_(c), y - c, torch.zeros_like(c)
        b = m.mean(0)
        if needs.exponent and (is_offset or _cancels(m, b, t)):
            return by_reference(count[:, 0] > 0)
        # log(1 / A z), from y and k.
        inverse = torch.sub(c, centre).mul_(t).sub_(k)
        lost = _lost(inverse, count)
        pulled = inverse.exp_().mul_(grad).masked_fill_((lost | (count[:, 0] == 0))[:, None], 0)
        z = m.sub(c).mul_(t).exp_()
        if spec.semi_gradient:
            dm = (matrix @ pulled).mul_(z)
        else:
            m = _within_reach(m, c, t)
            b = m.mean(0)
            first, second = (matrix @ torch.cat([pulled, pulled * (centre - b)], 1)).split(x.shape[1], 1)
            m -= b
            spread = torch.addcmul(-second, first, m).mul_(z)
            if needs.exponent:
                d_exponent = reference.sum_like(exponent, spread * m)
            dm = torch.addcmul(spread.mul_(t), z, first)
    else:
        q = t - 1
        value = m.log_()
        c, b = _pivot(value, q), value.mean(0)
        if needs.exponent and _cancels(value, b, t, b.exp()):
            return by_reference(count[:, 0] > 0)
        inverse = torch.sub(c, k).mul_(q)
        lost = _lost(inverse, count)
        blank = (lost | (count[:, 0] == 0))[:, None]
        pulled = inverse.exp_().mul_(grad).div_(count).masked_fill_(blank, 0)
        dm = (matrix @ pulled).mul_(value.sub(c).mul_(q).exp_())
        if needs.exponent:
            # sum of g y a (log m - log y), in two sums over nodes
            sent = reference.sum_like(exponent, dm * value.exp() * (value - b))
            received = reference.sum_like(exponent, (grad * y * (k - b)).masked_fill_(blank, 0))
            d_exponent = (sent - received) / t
    if spec.relu:
        dm.masked_fill_(x <= 0, 0)
    if lost.any():
        rest = by_reference(lost)
        dm += rest.x
        if d_exponent is not None and rest.exponent is not None:
            d_exponent = d_exponent + rest.exponent
    return AggregateGrads(dm, None if d_exponent is None else d_exponent.to(exponent.dtype))


def _cancels(value: Tensor, mean: Tensor, exponent: float | Tensor, size: Tensor | None = None) -> bool:
    """Whether the sums whose difference is the gradient of the exponent cancel; ``size`` if values are logarithms."""
    spread = torch.maximum(value.amax(0) - mean, mean - value.amin(0))
    if not float((spread * abs(exponent)).max()) < STEEP:
        return True
    # The gradient and its error, up to common factors, of the channels with the largest ones.
    found, error = spread.square(), mean.abs()
    found, error = (found, error * spread) if size is None else (found * size, error * size)
    return not float(error.max()) * FLAT * torch.finfo(value.dtype).eps <= float(found.max())


def _is_offset(pivot: Tensor, exponent: float | Tensor) -> bool:
    """Whether messages are so far from zero that only their differences can be summed."""
    size = _largest(pivot)
    return size > LARGE or size * (_largest(exponent) if isinstance(exponent, Tensor) else abs(exponent)) > OFFSET


def _largest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, math.inf))


def _within_reach(value: Tensor, pivot: Tensor, exponent: float | Tensor) -> Tensor:
    """The values, limited to those with a weight: one far outside would move the mean away from all the others."""
    size = exponent.abs() if isinstance(exponent, Tensor) else max(abs(exponent), 1e-300)
    reach = UNDERFLOW[value.dtype] / size
    return torch.maximum(torch.minimum(value, pivot + reach), pivot - reach)


def _lost(inverse: Tensor, count: Tensor) -> Tensor:
    return ~(inverse < REACH).all(1) & (count[:, 0] > 0)


def subset(graph: CSRGraph, rows: Tensor) -> CSRGraph:
    """The edges that arrive at some rows, for the reference, which reads this direction alone."""
    arriving = graph.arriving
    start, count = arriving.indptr[rows].long(), arriving.indptr.diff()[rows].long()
    offset = torch.nn.functional.pad(count.cumsum(0), (1, 0))
    place = torch.arange(int(offset[-1])) + (start - offset[:-1]).repeat_interleave(count)
    return graph._replace(arriving=CSRDirection(offset, arriving.indices[place], arriving.edges[place], offset, offset))
