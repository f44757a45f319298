"""Describe the inputs of a model as JSON, and draw random inputs from the description."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PLAIN = (str, int, float, bool, type(None))


class _NotDescribable(Exception):
    """A value has no description."""


def describe_inputs(value: Any) -> Any:
    """Replace tensors by their shape, dtype and integer range; None if a value cannot be described.

    The description holds no data of the tensors.
    """
    try:
        return _describe(value)
    except _NotDescribable:
        return None


def _describe(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_complex():
            raise _NotDescribable
        dtype = str(value.dtype).removeprefix("torch.")
        low, high = 0, 0
        if not value.is_floating_point() and value.numel() and not value.is_meta:
            low, high = int(value.min()), int(value.max())
        return {"tensor": {"shape": list(value.shape), "dtype": dtype, "low": low, "high": high}}
    if isinstance(value, PLAIN):
        return value
    if type(value) in (list, tuple):
        return {type(value).__name__: [_describe(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _describe(item) for key, item in value.items()}}
    raise _NotDescribable


def random_inputs(description: Any, generator: torch.Generator) -> Any:
    """Draw inputs that fit a description: integers from the same range, other numbers from a normal distribution."""
    if not isinstance(description, dict):
        return description
    ((kind, content),) = description.items()
    if kind == "tensor":
        dtype = getattr(torch, content["dtype"])
        if dtype.is_floating_point:
            return torch.randn(content["shape"], generator=generator).to(dtype)
        return torch.randint(content["low"], content["high"] + 1, content["shape"], generator=generator).to(dtype)
    if kind == "dict":
        return {key: random_inputs(item, generator) for key, item in content.items()}
    return {"list": list, "tuple": tuple}[kind](random_inputs(item, generator) for item in content)
