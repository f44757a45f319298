"""Precision of norms: statistics in at least float32, results in the input's dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """``x`` in the precision of its statistics: float64 if it has that, otherwise float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def cast(parameter: Tensor | None, like: Tensor) -> Tensor | None:
    """A gain or bias in the dtype of the widened input; a float32 gain then works with a bfloat16 stream."""
    return None if parameter is None else parameter.to(like.dtype)
