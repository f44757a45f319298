"""The check of features that a module reads, before PyTorch fails deep inside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normplace.errors import UsageError


def check_features(name: str, x: Tensor, *width: int, like: Tensor | None = None) -> None:
    """Refuse what is not a floating-point tensor with the given last dimensions.

    Args:
        name: What to call it in the error.
        x: The features.
        *width: The last dimensions it must have.
        like: Weights that multiply it, whose dtype it must have unless autocast converts both.

    Raises:
        UsageError: If it is something else.
    """
    if torch._C._get_tracing_state() is not None:  # sizes are tensors there, whose comparison would be recorded
        return
    if not isinstance(x, Tensor):
        raise UsageError(f"{name} must be a tensor, got {type(x).__name__}.")
    if not x.is_floating_point() or tuple(x.shape[-len(width) :]) != width:
        wanted = _words(width)
        raise UsageError(f"{name} must be floating point and end in {wanted}, got {tuple(x.shape)} of {x.dtype}.")
    if like is not None and x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise UsageError(f"{name} must be {like.dtype} as the weights are, got {x.dtype}: convert with .to().")


def _words(width: Sequence[int]) -> str:
    return f"{width[0]} features" if len(width) == 1 else f"the dimensions {tuple(width)}"
