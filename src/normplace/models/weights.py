"""The format weights are kept in."""

from __future__ import annotations

import importlib.util
from typing import Any

from normplace.errors import UsageError


def safetensors() -> Any:
    """The functions of safetensors for PyTorch.

    Raises:
        UsageError: If it is not installed.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise UsageError("weights are kept as safetensors, which is not installed: pip install safetensors.")
    import safetensors.torch

    return safetensors.torch
