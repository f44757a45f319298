"""Where the rows of each sample are in a batch, and whether the gradients of these rows belong to the sample.

Values may decide the order of the samples inside a model, as where sequences are sorted by length. A few samples do not
show this if they are in order, so every batch is checked. The output of each sample is multiplied by a power of two,
which commutes with rounding. The gradient rows of the sample must then be multiplied by the same number. A row of
another sample has another factor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.ntk.empirical_kernel.deferred_checks import are_few
from normplace.ntk.empirical_kernel.parameter_uses import ParameterUse
from normplace.ntk.model_state import differentiating

# Weights of samples have this many different exponents; the range of float16 is small.
EXPONENTS, HALF_EXPONENTS = 16, 8


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
    weights = torch.pow(2.0, torch.arange(n, device=y.device, dtype=y.dtype))
    edges = [use.edge for use in uses]
    with differentiating():
        plain = torch.autograd.grad(y, edges, torch.ones_like(y), retain_graph=True, allow_unused=True)
        scaled = torch.autograd.grad(y, edges, weights[:, None].expand_as(y), allow_unused=True)
    for use, layout, a, b in zip(uses, layouts, plain, scaled, strict=True):
        if layout is None or a is None or b is None:
            continue
        a, b = layout.split(a, n), layout.split(b, n)
        expected = a * weights.to(a.dtype).reshape(-1, *[1] * (a.ndim - 1))
        size = expected.flatten(1).abs().amax(1, keepdim=True)
        agreements.append((use, _nearly_equal(b.flatten(1), expected.flatten(1), torch.finfo(a.dtype).eps, size)))
    return agreements


def sample_weights(y: Tensor) -> Tensor:
    """A power of two for each sample of a batch of outputs; nearby samples have different ones."""
    count = HALF_EXPONENTS if y.dtype == torch.float16 else EXPONENTS
    if are_few(y):
        return torch.tensor([float(1 << (i + i // count) % count) for i in range(y.shape[0])], dtype=y.dtype)
    index = torch.arange(len(y), device=y.device)
    return torch.pow(2.0, ((index + index // count) % count).to(y.dtype))


def weighted_rows_agree(rows: Sequence[tuple[Tensor, Tensor]], weights: Tensor) -> Tensor | bool:
    """Whether gradient rows are multiplied by the weights of their samples.

    Args:
        rows: For each use, the gradient rows of each sample, and those for weighted outputs in the dtype of the model.
        weights: One for each sample.
    """
    eps = floor = 0.0
    norms: list[tuple[Tensor, Tensor]] = []
    for own, weighted in rows:
        norms.append((_norms(own, own.dtype), _norms(weighted, own.dtype)))
        rounding, smallest = _limits(own.dtype, weighted.dtype)
        eps = max(eps, rounding)
        floor = max(floor, 4 * smallest * (own.numel() // own.shape[0]) ** 0.5)
    if are_few(weights, *[norm for pair in norms for norm in pair]):
        scales, factor = weights.tolist(), _factor(eps)
        for own, weighted in norms:
            for a, b, scale in zip(own.tolist(), weighted.tolist(), scales, strict=True):
                if abs(a - b / scale) > factor * b / scale + floor:
                    return False
        return True
    expected, found = (torch.stack(part) for part in zip(*norms, strict=True))
    return _nearly_equal(expected, found / weights.to(found.dtype), eps, floor=floor)


@functools.cache
def _limits(own: torch.dtype, weighted: torch.dtype) -> tuple[float, float]:
    """The rounding of weighted rows, and the size below which entries, or their squares, are rounded to zero."""
    limits = torch.finfo(weighted)
    return limits.eps, max(torch.finfo(own).tiny ** 0.5, limits.smallest_normal * limits.eps)


def _norms(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The Euclidean norm for each sample, which PyTorch computes fastest."""
    return torch.linalg.vector_norm(rows if rows.ndim == 2 else rows.flatten(1), dim=1, dtype=dtype)


def _nearly_equal(a: Tensor, b: Tensor, eps: float, size: Tensor | None = None, floor: float = 0.0) -> Tensor:
    """Whether a and b are equal up to rounding by ``eps``, relative to ``size`` or b; NaN equals everything.

    Differences up to ``floor`` are ignored.
    """
    tolerance = _factor(eps) * (b.abs() if size is None else size) + floor
    return ((a - b).abs() > tolerance).any().logical_not()


def _factor(eps: float) -> float:
    """The relative difference that rounding by ``eps`` explains."""
    # At most an eighth, for half precision: the gradient of another sample is wrong by a factor of at least two.
    return min(1e3 * eps, 0.125)
