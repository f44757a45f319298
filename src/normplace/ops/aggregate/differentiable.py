"""Generalized aggregation in differentiable PyTorch operations, for derivatives that the fast paths do not have.

``torch.func`` transforms, forward-mode differentiation and second derivatives use it. The result is the same as that
of :mod:`normplace.ops.aggregate.reference`; memory grows with edges × channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normplace.ops.aggregate.neighbours import CSRGraph
from normplace.ops.aggregate.reference import AggregateInputs, AggregateSpec, messages, segments, sums

# Below this both ratios are computed from their series, whose derivatives of any order are exact at zero.
NEAR = 0.25
# Above this size of u a difference quotient is (exp(u) - 1) / p, below it diff (expm1(u) / u), whose p may be zero.
STEEP = 8.0
# 1 / (k + 1)! and (-1)^k / (k + 1), highest power first; the remainder is under the last digit of float64.
EXPM1_SERIES = (
    1 / 1307674368000, 1 / 87178291200, 1 / 6227020800, 1 / 479001600, 1 / 39916800, 1 / 3628800, 1 / 362880,
    1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0,
)  # fmt: skip
LOG1P_SERIES = tuple((-1) ** k / (k + 1) for k in range(28, -1, -1))


def forward(inputs: AggregateInputs, graph: CSRGraph, spec: AggregateSpec) -> Tensor:
    """The aggregate of every row, in float32 or float64."""
    x, exponent, *_ = inputs
    row, count = segments(graph.arriving, 0, graph.arriving.num_rows)
    m = messages(inputs, graph.arriving, spec)
    blank = x.new_zeros(len(count), x.shape[1], dtype=m.dtype)
    nonempty = (count > 0)[:, None]
    value = m if spec.kind == "softmax" else m.log()
    # The result does not depend on the pivot, so the pivot is a constant.
    fixed, index = value.detach(), row[:, None].expand(value.shape)
    top = torch.where(
        exponent.detach() < 0,
        blank.scatter_reduce(0, index, fixed, "amin", include_self=False),
        blank.scatter_reduce(0, index, fixed, "amax", include_self=False),
    )
    if spec.kind == "softmax":
        above = _softmax_above(value - top[row], exponent, row, torch.where(nonempty, blank, 1), spec.semi_gradient)
        return torch.where(nonempty, top + above, 0)
    above = _power_above(value - top[row], exponent, row, blank, count.clamp(min=1)[:, None])
    return torch.where(nonempty, (top + above).exp(), 0)


def _softmax_above(diff: Tensor, t: Tensor, row: Tensor, initial: Tensor, constant_weights: bool) -> Tensor:
    """The softmax-weighted mean of each row, less its pivot."""
    hard = t.isinf()
    # At infinite temperature the largest messages have equal weights, the others none, and no weight has a derivative.
    z = torch.where(hard, (diff.detach() == 0).to(diff.dtype), (torch.where(hard, 0, t) * diff).exp())
    z = z.detach() if constant_weights else z
    return sums(z * diff, row, torch.zeros_like(initial)) / sums(z, row, initial)


def _power_above(diff: Tensor, p: Tensor, row: Tensor, blank: Tensor, n: Tensor) -> Tensor:
    """The log of each row's power mean, less its pivot; smooth in the power, also at zero."""
    mean = sums((p * diff).exp(), row, blank) / n
    u = p * diff
    # The derivatives of the product, and of expm1, lose the digits of exp(u) where that is small.
    steep = u.detach().abs() > STEEP
    quotient = (torch.where(steep, u, 0).exp() - 1) / torch.where(steep, p, 1)
    terms = torch.where(steep, quotient, diff * _expm1_ratio(torch.where(steep, 0, u)))
    excess = sums(terms, row, blank) / n  # (mean - 1) / p
    fixed = mean.detach()
    far = (fixed > 0) & (fixed < 0.5)  # false for an empty row, and for p = 0
    return torch.where(
        far,
        torch.where(far, mean, 1).log() / torch.where(far, p, 1),
        excess * _log1p_ratio(torch.where(far, 0, p * excess)),
    )


def _expm1_ratio(u: Tensor) -> Tensor:
    """``(exp(u) - 1) / u``, 1 at zero."""
    near = u.detach().abs() < NEAR
    return torch.where(near, _series(EXPM1_SERIES, torch.where(near, u, 0)), _quotient(torch.expm1, near, u))


def _log1p_ratio(u: Tensor) -> Tensor:
    """``log(1 + u) / u``, 1 at zero."""
    near = u.detach().abs() < NEAR
    return torch.where(near, _series(LOG1P_SERIES, torch.where(near, u, 0)), _quotient(torch.log1p, near, u))


def _quotient(function: Callable[[Tensor], Tensor], near: Tensor, u: Tensor) -> Tensor:
    """``function(u) / u`` away from zero, and at 1 where the quotient is not used."""
    u = torch.where(near, 1, u)
    return function(u) / u


def _series(coefficients: Sequence[float], u: Tensor) -> Tensor:
    total = torch.zeros_like(u)
    for coefficient in coefficients:
        total = total * u + coefficient
    return total
