"""Optional peers, and notes for those that are not installed."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

NOT_QUICK = "torch.compile is left out of a quick run: compiling takes longer than everything else"

_INSTALL = {
    "torch_geometric": "PyG is not installed: pip install 'normplace[graphs]' to compare the aggregation with it",
    "liger_kernel": "Liger is not installed: pip install liger-kernel to compare the boundary with its norms",
    "fla": "flash-linear-attention is not installed: pip install flash-linear-attention to time it for comparison",
    "nngeometry": "nngeometry is not installed: pip install nngeometry to compare kernels of networks without norms",
}


def missing(module: str) -> list[str]:
    """A note if a peer is not installed, else nothing."""
    return [] if importlib.util.find_spec(module) else [_INSTALL[module]]


def imported(module: str) -> ModuleType:
    """A peer's module."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)  # raised by PyG on import
        return importlib.import_module(module)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for the shapes of one case."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)
