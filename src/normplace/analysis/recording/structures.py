"""Tensors in nested arguments and results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

Structure = TypeVar("Structure")


def tensors_of(structure: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """The tensors in nested containers, and in the attributes of objects other than modules."""
    seen = set() if seen is None else seen
    if isinstance(structure, Tensor):
        yield structure
        return
    if isinstance(structure, str | bytes | int | float | bool | type(None) | type) or id(structure) in seen:
        return
    seen.add(id(structure))
    if isinstance(structure, Mapping):
        parts: Any = structure.values()
    elif isinstance(structure, list | tuple | set):
        parts = structure
    elif isinstance(structure, nn.Module):
        return
    else:
        parts = getattr(structure, "__dict__", {}).values()
    for part in list(parts):
        yield from tensors_of(part, seen)


def map_tensors(function: Callable[[Tensor], Tensor], structure: Any) -> Any:
    """A copy of nested dicts, lists, tuples and PyG graphs with each tensor replaced; other objects are kept."""
    if isinstance(structure, Tensor):
        return function(structure)
    if isinstance(structure, dict):
        return {key: map_tensors(function, part) for key, part in structure.items()}
    if type(structure) in (tuple, list):
        return type(structure)(map_tensors(function, part) for part in structure)
    if any(kind.__module__.startswith("torch_geometric.data") for kind in type(structure).__mro__):
        return copy.copy(structure).apply(function) if hasattr(structure, "apply") else structure
    return structure


def fresh_inputs(inputs: Structure) -> Structure:
    """A copy of a model's inputs for one pass, which may write to them or append to a cache among them."""
    try:
        return copy.deepcopy(inputs)
    except RuntimeError:  # a tensor that requires grad and is not a leaf cannot be copied
        return inputs
