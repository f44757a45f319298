"""Checks of feature tensors, made before PyTorch fails deep inside a module."""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.errors import UsageError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def compute_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype of the arithmetic on tensors of these dtypes: float64 if one has it, otherwise float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def check_features(name: str, x: Tensor, *width: int, like: Tensor | None = None) -> None:
    """Raise an error for anything but a floating-point tensor with these last dimensions.

    Args:
        name: Name of the argument in the error.
        x: The features.
        *width: The expected last dimensions.
        like: Weights that multiply the features. Both must have the same dtype unless autocast converts them.

    Raises:
        UsageError: If the features do not match.
    """
    if torch._C._get_tracing_state() is not None:  # sizes are tensors there, and comparing them would be recorded
        return
    if not isinstance(x, Tensor):
        raise UsageError(f"{name} must be a tensor, got {type(x).__name__}.")
    if not x.is_floating_point() or tuple(x.shape[-len(width) :]) != width:
        expected = f"{width[0]} features" if len(width) == 1 else f"the dimensions {width}"
        raise UsageError(f"{name} must be floating point and end in {expected}, got {describe(x)}.")
    if like is not None and x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise UsageError(f"{name} must be {like.dtype} as the weights are, got {x.dtype}: convert with .to().")


def describe(value: object) -> str:
    """Shape and dtype of a tensor, or the type of anything else, for an error message."""
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
