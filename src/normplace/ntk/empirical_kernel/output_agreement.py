"""Whether two batches have the same outputs up to rounding."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from normplace.ntk.empirical_kernel.deferred_checks import are_few


def outputs_agree(a: Tensor, b: Tensor, scale: Tensor | None = None) -> Tensor | bool:
    """Whether a and b are equal up to rounding, relative to the whole output; NaN equals NaN."""
    if a.shape != b.shape:
        return False
    a, b = a.detach(), b.detach()
    scale = b if scale is None else scale.detach()
    if are_few(a, b, scale):
        pairs = zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)
        return few_values_agree(pairs, scale.flatten().tolist(), tolerance_of(b))
    near = (a - b).abs() <= tolerance_of(b) * scale.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return (near | (a == b) | (a.isnan() & b.isnan())).all()


def few_values_agree(pairs: Iterable[tuple[float, float]], scale: Iterable[float], tolerance: float) -> bool:
    """The comparison of :func:`outputs_agree` for the values of small tensors."""
    limit = tolerance * max([abs(value) for value in scale if math.isfinite(value)], default=0.0)
    return all(abs(a - b) <= limit or a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def tolerance_of(y: Tensor) -> float:
    """The difference that rounding explains, relative to the largest output."""
    return _tolerance(y.dtype)


@functools.cache
def _tolerance(dtype: torch.dtype) -> float:
    # At most an eighth, for half precision: other samples in the batch often change an output by less than its size.
    return min(10 * torch.finfo(dtype).eps ** 0.5, 0.125)
