"""Where the rows of each sample are in a batch, and whether the gradients of these rows belong to the sample.

Values may decide the order of the samples inside a model, as where sequences are sorted by length. A few samples do not
show this if they are in order, so every batch is checked. The output of each sample is multiplied by a power of two,
which commutes with rounding. The gradient rows of the sample must then be multiplied by the same number. A row of
another sample has another factor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.ntk.empirical_kernel.deferred_checks import are_few
from normplace.ntk.empirical_kernel.parameter_uses import ParameterUse
from normplace.ntk.model_state import differentiating

# Weights of samples have this many different exponents; the range of float16 is small.
EXPONENTS, HALF_EXPONENTS = 16, 8
# Multiplied by the golden ratio, numbers have no period: products modulo 1 or modulo a power of two are spread evenly.
GOLDEN_RATIO, GOLDEN_INTEGER = 0.6180339887, 0x9E3779B1

RowComparison = Callable[[Sequence[tuple[Tensor, Tensor]], Tensor], Tensor | bool]


@dataclass(frozen=True)
class SampleLayout:
    """Position of the samples in a tensor: axis ``dim`` has ``length`` entries per sample.

    ``minor`` means that the sample index varies fastest along the axis, as after flattening (time, sample).
    """

    dim: int
    length: int
    minor: bool

    def split(self, tensor: Tensor, samples: int) -> Tensor:
        """The tensor with the samples on axis 0."""
        if self.length == 1:
            return tensor if self.dim == 0 else tensor.movedim(self.dim, 0)
        if self.minor:
            return tensor.unflatten(self.dim, (self.length, samples)).movedim(self.dim + 1, 0)
        return tensor.unflatten(self.dim, (samples, self.length)).movedim(self.dim, 0)


def rows_follow_samples(
    y: Tensor, uses: list[ParameterUse], layouts: list[SampleLayout | None]
) -> list[tuple[ParameterUse, Tensor]]:
    """For each use with a layout, whether its gradient rows belong to the samples that the layout assigns.

    The output of sample i is weighted by 2^i. Powers of two commute with rounding, so the gradient rows of sample i
    must be exactly 2^i times the unweighted ones. A row of another sample has another factor.
    """
    if not uses:
        return []
    n, agreements = y.shape[0], []
    weights = torch.pow(2.0, torch.arange(n, device=y.device, dtype=y.dtype))[:, None]
    edges = [use.edge for use in uses]
    with differentiating():
        plain = torch.autograd.grad(y, edges, torch.ones_like(y), retain_graph=True, allow_unused=True)
        scaled = torch.autograd.grad(y, edges, weights.expand_as(y), allow_unused=True)
    for use, layout, a, b in zip(uses, layouts, plain, scaled, strict=True):
        if layout is None or a is None or b is None:
            continue
        agreements.append((use, _entries_agree(layout.split(a, n), layout.split(b, n), weights)))
    return agreements


def entries_agree(rows: Sequence[tuple[Tensor, Tensor]], weights: Tensor) -> Tensor:
    """Whether every entry of the gradient rows is multiplied by the weight of its sample.

    Args:
        rows: For each use, the gradient rows of each sample, and those for weighted outputs in the dtype of the model.
        weights: One for each sample, as a column.
    """
    return torch.stack([_entries_agree(own.to(weighted.dtype), weighted, weights) for own, weighted in rows]).all()


def _entries_agree(own: Tensor, weighted: Tensor, weights: Tensor) -> Tensor:
    """The comparison of :func:`entries_agree` for the rows of one use, relative to the largest entry of each row."""
    expected = (own * _column(weights, own)).flatten(1)
    size = expected.abs().amax(1, keepdim=True)
    return _nearly_equal(weighted.flatten(1), expected, torch.finfo(weighted.dtype).eps, size)


def are_exact(rows: Sequence[tuple[Tensor, Tensor]], weights: Tensor) -> bool:
    """Whether all entries are multiplied exactly, as by most layers. Asking a GPU would wait, so False there."""
    return weights.device.type == "cpu" and all(
        own.dtype == weighted.dtype and torch.equal(weighted, own * _column(weights, own)) for own, weighted in rows
    )


def _column(weights: Tensor, rows: Tensor) -> Tensor:
    """The column of weights in the shape and dtype that multiplies rows."""
    if weights.dtype != rows.dtype:
        weights = weights.to(rows.dtype)
    return weights if rows.ndim == 2 else weights.view(-1, *[1] * (rows.ndim - 1))


def sample_weights(y: Tensor) -> Tensor:
    """A power of two for each sample of a batch of outputs, as a column; nearby samples have different ones."""
    return _weights(y.shape[0], y.dtype, y.device)


@functools.lru_cache(maxsize=8)  # the columns of large batches would fill the memory
def _weights(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    count = HALF_EXPONENTS if dtype == torch.float16 else EXPONENTS
    index = torch.arange(n, device=device)
    # Each group has all exponents, in an order that has no relation to those of other groups.
    shift = index // count * GOLDEN_INTEGER >> 15
    return torch.pow(2.0, ((index + shift) % count).to(dtype))[:, None]


def output_coefficients(y: Tensor) -> Tensor:
    """A coefficient between 1 and 2 for each output, as a row."""
    return _coefficients(y.shape[1], y.dtype, y.device)


@functools.lru_cache(maxsize=8)
def _coefficients(outputs: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return 1 + (torch.arange(outputs, device=device) * GOLDEN_RATIO % 1).to(dtype)[None]


def weighted_rows_agree(rows: Sequence[tuple[Tensor, Tensor]], weights: Tensor) -> Tensor | bool:
    """Whether gradient rows are multiplied by the weights of their samples.

    Args:
        rows: For each use, the gradient rows of each sample, and those for weighted outputs in the dtype of the model.
        weights: One for each sample, as a column.
    """
    eps = floor = 0.0
    norms: list[tuple[Tensor, Tensor]] = []
    for own, weighted in rows:
        norms.append((_norms(own, own.dtype), _norms(weighted, own.dtype)))
        rounding, smallest = _limits(own.dtype, weighted.dtype)
        eps = max(eps, rounding)
        floor = max(floor, 4 * smallest * (own.numel() // own.shape[0]) ** 0.5)
    if are_few(weights, *[norm for pair in norms for norm in pair]):
        scales, factor = weights.flatten().tolist(), _factor(eps)
        for own, weighted in norms:
            for a, b, scale in zip(own.tolist(), weighted.tolist(), scales, strict=True):
                if abs(a - b / scale) > factor * b / scale + floor:
                    return False
        return True
    expected, measured = (torch.stack(part) for part in zip(*norms, strict=True))
    measured = measured / weights.flatten().to(measured.dtype)
    # NaN equals everything.
    return (torch.sub((expected - measured).abs(), measured, alpha=_factor(eps)) > floor).any().logical_not()


@functools.cache
def _limits(own: torch.dtype, weighted: torch.dtype) -> tuple[float, float]:
    """The rounding of weighted rows, and the size below which entries, or their squares, are rounded to zero."""
    limits = torch.finfo(weighted)
    return limits.eps, max(torch.finfo(own).tiny ** 0.5, limits.smallest_normal * limits.eps)


def _norms(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The Euclidean norm for each sample, which PyTorch computes fastest."""
    return torch.linalg.vector_norm(rows if rows.ndim == 2 else rows.flatten(1), dim=1, dtype=dtype)


def _nearly_equal(a: Tensor, b: Tensor, eps: float, size: Tensor) -> Tensor:
    """Whether a and b are equal up to rounding by ``eps``, relative to ``size``; NaN equals everything."""
    return ((a - b).abs() > _factor(eps) * size).any().logical_not()


def _factor(eps: float) -> float:
    """The relative difference that rounding by ``eps`` explains."""
    # At most an eighth, for half precision: the gradient of another sample is wrong by a factor of at least two.
    return min(1e3 * eps, 0.125)
