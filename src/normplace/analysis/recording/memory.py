"""Which value of the tape a tensor holds, also after its memory was written through another tensor.

Each value has one id. When a tensor is changed in place, it gets a new id, and so do the tensors that share its memory,
so that the rest of the analysis can ignore in-place operators.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normplace.analysis.recording.ids import ValueId

Geometry = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Offset, shape and strides of a tensor in its storage."""


@dataclass(slots=True)
class TrackedTensor:
    """The value that a tensor object holds.

    Attributes:
        tensor: The tensor.
        value: The id of its value.
        version: The number of writes to its storage that the value includes.
    """

    tensor: weakref.ref[Tensor]
    value: ValueId
    version: int


@dataclass(slots=True)
class WrittenStorage:
    """The writes to one storage: their number, and for each its version, its value and the memory it covers."""

    version: int = 0
    writes: list[tuple[int, ValueId, Geometry | None]] = field(default_factory=list)


def storage_key(tensor: Tensor) -> int:
    """An identifier of the memory that a tensor uses."""
    try:
        return tensor.untyped_storage()._cdata
    except RuntimeError:  # sparse and opaque tensors have no storage
        return id(tensor)


def geometry(tensor: Tensor) -> Geometry | None:
    """The memory that a tensor covers; a contiguous tensor counts as flat. None for a tensor without strides."""
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_contiguous():
        return int(tensor.storage_offset()), (tensor.numel(),), (1,)
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())


def overlap(one: Geometry | None, other: Geometry | None) -> bool:
    """Whether two parts of a storage may share an element; exact for equal strides, by range otherwise."""
    if one is None or other is None:
        return True
    (start, shape, strides), (begin, sizes, steps) = one, other
    last = start + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    end = begin + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if last < begin or end < start:
        return False
    if strides != steps:
        return True
    largest = [max(pair) for pair in zip(shape, sizes, strict=True)]
    dims = sorted(zip(strides, largest, strict=True), reverse=True)
    return _is_combination(begin - start, [dim for dim in dims if dim[1] > 1])


def _is_combination(distance: int, dims: list[tuple[int, int]]) -> bool:
    """Whether a distance is a sum of fewer than ``size`` strides, forward or backward, in each dimension."""
    if not dims:
        return distance == 0
    (stride, size), *rest = dims
    if stride == 0:
        return _is_combination(distance, rest)
    nearest = distance // stride
    return any(abs(n) < size and _is_combination(distance - n * stride, rest) for n in (nearest, nearest + 1))
