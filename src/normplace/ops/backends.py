"""Choose the implementation that computes an op, with the reason for the choice."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from normplace.errors import UsageError, cause

Result = TypeVar("Result")
# Optional packages that a backend needs. A constant, because ``torch.compile`` cannot trace the search for a package.
INSTALLED = {package: importlib.util.find_spec(package) is not None for package in ("numba", "triton")}


class BackendChoice(NamedTuple):
    """The backend that computes an op, and why."""

    backend: str
    reason: str


def numba_unavailable_reason() -> str | None:
    """Why numba cannot run; None if it can."""
    return _numba_import_error() if INSTALLED["numba"] else "numba is not installed (pip install 'normplace[graphs]')"


@functools.cache
def _numba_import_error() -> str | None:
    try:
        importlib.import_module("numba")
    except Exception as error:  # numba may not support the installed NumPy
        return f"numba cannot be imported ({cause(error)})"
    return None


def choose_triton(
    requested: str, device: str, *, unsupported: str | None = None, fallback: str = "reference"
) -> BackendChoice:
    """Triton where its kernels run, otherwise the fallback.

    Args:
        requested: ``triton`` or ``auto``. Kernels run by Triton's interpreter only if they are requested.
        device: Type of the device of the tensors.
        unsupported: Why the kernels do not support these tensors, if so.
        fallback: Backend to use for ``auto`` if Triton cannot run.

    Raises:
        UsageError: If Triton is requested and cannot run.
    """
    interpreted = requested == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    reason = unsupported
    if device != "cuda" and not interpreted:
        reason = f"the Triton kernels need a CUDA GPU and the tensors are on {device}"
    elif not INSTALLED["triton"]:
        reason = "Triton is not installed (pip install triton)"
    if reason is None:
        return BackendChoice("triton", "Triton kernels run on this device")
    if requested == "triton":
        raise UsageError(f"backend 'triton' cannot run: {reason}; use backend='auto'.")
    return BackendChoice(fallback, reason)


@functools.cache
def import_backend(op: str, module: str) -> Any:
    """A backend's module, imported at first use because its dependency is optional."""
    return importlib.import_module(f"{__package__}.{op}.{module}")


@functools.cache
def _has_several_gpus() -> bool:
    """Whether a GPU may not be the current one; called when CUDA is in use, which fixes their number."""
    return torch.cuda.device_count() > 1


def on_device_of(tensor: Tensor, call: Callable[..., Result], *arguments: object) -> Result:
    """Call with the tensor's GPU as the current device, which a kernel launch needs."""
    if tensor.is_cuda and _has_several_gpus() and tensor.get_device() != torch.cuda.current_device():
        with torch.cuda.device_of(tensor):
            return call(*arguments)
    return call(*arguments)
