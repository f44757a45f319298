"""Checks of tensor arguments that the kernel functions share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown


def require_floating(name: str, value: object) -> Tensor:
    """``value`` if it is a finite floating-point tensor.

    Raises:
        UsageError: If it is not a dense tensor, is not floating point, is empty, or is not finite.
    """
    if not isinstance(value, Tensor):
        raise UsageError(f"{name} must be a torch.Tensor, not {type(value).__name__}.")
    if value.is_nested or value.layout != torch.strided or value.device.type == "meta":
        raise UsageError(f"{name} is a sparse, nested or meta tensor: use a dense one with values.")
    if not value.is_floating_point():
        raise UsageError(f"{name} has dtype {value.dtype}, but a kernel needs real inputs: convert it with .double().")
    if value.numel() == 0:
        raise UsageError(f"{name} is empty (shape {tuple(value.shape)}).")
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        raise UsageError(f"{name} has {bad} non-finite value(s): clean the data first.")
    return value


def require_choice(name: str, value: object, options: Iterable[str]) -> str:
    """``value`` if it is one of the options.

    Raises:
        UsageError: If it is not.
    """
    if isinstance(value, str) and value in options:
        return value
    raise unknown(name, value if isinstance(value, str) else f"of type {type(value).__name__}", options)


def require_rows(name: str, value: object) -> Tensor:
    """``value`` as a float64 matrix (N, d).

    Raises:
        UsageError: If it is not a finite floating-point matrix.
    """
    tensor = require_floating(name, value)
    if tensor.ndim != 2:
        raise UsageError(f"{name} has shape {tuple(tensor.shape)}, but (N, features) is needed: reshape it first.")
    return tensor.detach().double()


def require_kernel(name: str, value: object) -> Tensor:
    """``value`` if it is a finite, symmetric, square kernel matrix.

    Raises:
        UsageError: If it is not.
    """
    tensor = require_floating(name, value)
    if tensor.ndim != 2 or tensor.shape[0] != tensor.shape[1]:
        raise UsageError(f"{name} has shape {tuple(tensor.shape)}, but a square (N, N) kernel is needed.")
    gap = max(
        float((rows - columns).abs().max())
        for rows, columns in zip(tensor.split(1024), (c.T for c in tensor.split(1024, dim=1)), strict=True)
    )
    # A float32 empirical kernel of wide layers is symmetric only to a few hundred rounding units.
    if gap > 1e3 * torch.finfo(tensor.dtype).eps * float(tensor.abs().max()):
        raise UsageError(f"{name} is not symmetric (largest gap {gap:.3g}): pass Θ(X, X) of the training inputs.")
    return tensor.detach()


def require_columns(name: str, value: object, rows: int) -> Tensor:
    """``value`` as float64 columns (rows, outputs).

    Raises:
        UsageError: If it is not a finite vector or matrix with that many rows.
    """
    tensor = require_floating(name, value)
    if tensor.ndim not in {1, 2} or tensor.shape[0] != rows:
        raise UsageError(f"{name} has shape {tuple(tensor.shape)}, but ({rows},) or ({rows}, outputs) is needed.")
    return tensor.detach().double().reshape(rows, -1)


def require_same_device(**tensors: Tensor | None) -> None:
    """Check that all tensors are on one device.

    Raises:
        UsageError: If they are not.
    """
    devices = {name: str(tensor.device) for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise UsageError(f"the tensors are on different devices ({where}): move them to one.")
