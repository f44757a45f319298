"""The inputs of a model as a JSON-ready description, and inputs like them, so that a pass can be repeated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PLAIN = (str, int, float, bool, type(None))


class Undescribed(Exception):
    """A value has no description."""


def describe(value: Any) -> Any:
    """Shapes, dtypes and ranges of integers in place of tensors; None where something cannot be described.

    Numbers of the data itself are left out.
    """
    try:
        return _described(value)
    except Undescribed:
        return None


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_complex():
            raise Undescribed
        dtype = str(value.dtype).removeprefix("torch.")
        low, high = 0, 0
        if not value.is_floating_point() and value.numel() and not value.is_meta:
            low, high = int(value.min()), int(value.max())
        return {"tensor": {"shape": list(value.shape), "dtype": dtype, "low": low, "high": high}}
    if isinstance(value, PLAIN):
        return value
    if type(value) in (list, tuple):
        return {type(value).__name__: [_described(part) for part in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _described(part) for key, part in value.items()}}
    raise Undescribed


def like(described: Any, generator: torch.Generator) -> Any:
    """Inputs as they were described: integers from the same range, other numbers drawn at random."""
    if not isinstance(described, dict):
        return described
    ((kind, held),) = described.items()
    if kind == "tensor":
        dtype = getattr(torch, held["dtype"])
        if dtype.is_floating_point:
            return torch.randn(held["shape"], generator=generator).to(dtype)
        return torch.randint(held["low"], held["high"] + 1, held["shape"], generator=generator).to(dtype)
    if kind == "dict":
        return {key: like(part, generator) for key, part in held.items()}
    return {"list": list, "tuple": tuple}[kind](like(part, generator) for part in held)
