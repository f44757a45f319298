"""Statistics in at least float32, results in the input's dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """``x`` in the precision its statistics are computed in: float32, or float64 where it already is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def cast(parameter: Tensor | None, like: Tensor) -> Tensor | None:
    """A gain or shift in the dtype of the widened input, so that a float32 gain serves a bfloat16 stream."""
    return None if parameter is None else parameter.to(like.dtype)
