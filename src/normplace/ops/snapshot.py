"""Detect changes of a tensor from which a cached value was computed.

PyTorch's version counter does not see a write through ``.data`` or through a NumPy array that shares the memory, so a
hash of the values is compared too. On a CPU this costs one pass over the tensor. On other devices the comparison does
not synchronize; instead, a value computed from the tensor becomes ``nan`` if the hash has changed.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# The hash multiplies the values of each row of this many by the same factors, and each row by one more factor.
ROW = 4096
GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, as a signed integer


@functools.cache
def _factors(count: int) -> np.ndarray:
    """Odd random factors: a change of one value always changes the hash."""
    return np.random.default_rng(0).integers(-(2**63), 2**63 - 1, count) | 1


@functools.cache
def _factors_on(device: torch.device) -> Tensor:
    return torch.from_numpy(_factors(ROW)).to(device)


def fingerprint(tensor: Tensor) -> int | Tensor:
    """A hash of an integer tensor's values and their order; on a GPU a tensor, without synchronization."""
    flat = tensor.detach().reshape(-1).long()
    return _hash_array(flat.numpy()) if flat.device.type == "cpu" else _hash_tensor(flat)


def _hash_array(values: np.ndarray) -> int:
    whole, factors = len(values) // ROW * ROW, _factors(ROW)
    if not whole:  # most calls are for small graphs
        return int((np.dot(values, factors[: len(values)]) * np.array([GOLDEN]))[0])
    sums = np.einsum("ij,j->i", values[:whole].reshape(-1, ROW), factors)
    if whole < len(values):
        sums = np.append(sums, np.dot(values[whole:], factors[: len(values) - whole]))
    return int(np.dot(sums, np.arange(1, len(sums) + 1) * GOLDEN | 1))


def _hash_tensor(values: Tensor) -> Tensor:
    rows = torch.nn.functional.pad(values, (0, -len(values) % ROW)).reshape(-1, ROW)
    sums = (rows * _factors_on(values.device)).sum(1)
    return (sums * (torch.arange(1, len(sums) + 1, device=values.device) * GOLDEN | 1)).sum()


@dataclass(frozen=True)
class Snapshot:
    """Identity, version, memory layout and hash of a tensor at one time."""

    tensor: weakref.ref[Tensor]
    version: int
    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    digest: int | Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Snapshot:
        """Take a snapshot of an integer tensor that was not created in inference mode."""
        return cls(
            weakref.ref(tensor), tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride(), fingerprint(tensor)
        )

    @property
    def alive(self) -> bool:
        """Whether the tensor still exists."""
        return self.tensor() is not None

    def matches(self, tensor: Tensor) -> bool:
        """Whether this is the same tensor, unchanged as far as known without synchronization."""
        expected = (self.version, self.address, self.shape, self.stride)
        if self.tensor() is not tensor or expected != (
            tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()
        ):  # fmt: skip
            return False
        return tensor.device.type != "cpu" or bool(self.digest == fingerprint(tensor))

    def is_unchanged(self, tensor: Tensor) -> Tensor:
        """Whether the values of the tensor are the same, on its device and without synchronization."""
        return torch.as_tensor(self.digest == fingerprint(tensor), device=tensor.device)

    def nan_if_changed(self, value: Tensor, tensor: Tensor) -> Tensor:
        """``value``, or ``nan`` if the values of a tensor that is not on a CPU have changed."""
        return value if tensor.device.type == "cpu" else torch.where(self.is_unchanged(tensor), value, torch.nan)
