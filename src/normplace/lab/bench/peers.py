"""Peers that several ops have, and why one is not there."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

NOT_QUICK = "torch.compile is left out of a quick look: compiling takes longer than all the rest"

_INSTALL = {
    "torch_geometric": "PyG is not installed: pip install 'normplace[graphs]' to have it beside the aggregation",
    "liger_kernel": "Liger is not installed: pip install liger-kernel to have its norms beside the boundary",
    "fla": "flash-linear-attention is not installed: pip install flash-linear-attention to have it as a yardstick",
    "nngeometry": "nngeometry is not installed: it would stand beside the tangent kernel of a network without norms",
}


def missing(module: str) -> list[str]:
    """A note where a peer is not installed, nothing where it is."""
    return [] if importlib.util.find_spec(module) else [_INSTALL[module]]


def imported(module: str) -> ModuleType:
    """A peer's module."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)  # PyG's own, on import
        return importlib.import_module(module)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under torch.compile, for the shapes of one case alone."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)
