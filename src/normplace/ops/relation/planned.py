"""What is decided once for all relations of one shape: how kernels are launched, and how scratch memory is shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.launch import Launch
from normplace.ops.relation.plain import Rule

# Shapes and rules whose launches are remembered.
FORMS = 1024
# Numbers that a piece of scratch memory is a multiple of, so that each begins with a line of the cache.
LINE = 32


class Form(NamedTuple):
    """What decides how the kernels are compiled and launched."""

    rule: Rule
    shape: tuple[int, ...]
    dtype: torch.dtype
    masked: bool
    device: torch.device

    @classmethod
    def of(cls, a: Tensor, weight: Tensor | None, rule: Rule) -> Form:
        """Of a relation."""
        return cls(rule, a.shape, a.dtype, weight is not None, a.device)


class Step(NamedTuple):
    """A kernel launched with the same grid and numbers every time."""

    launch: Launch
    grid: tuple[int, int, int]
    numbers: tuple[float, ...]

    def __call__(self, stream: int, *tensors: Tensor | None) -> None:
        """Run it on tensors of the form the launch is for."""
        self.launch(self.grid, stream, tensors, *self.numbers)

    def at(self, first: int) -> Step:
        """The same with one more number before the others."""
        return self._replace(numbers=(first, *self.numbers))


class Scratch:
    """Several tensors of float32 in one allocation.

    Args:
        sizes: Numbers in each; 0 for one that is not needed.
    """

    def __init__(self, *sizes: int) -> None:
        self._sizes = [-(-size // LINE) * LINE for size in sizes]
        self._total = sum(self._sizes)

    def take(self, device: torch.device) -> Sequence[Tensor | None]:
        """New tensors, flat, with None for one that is not needed."""
        pieces = torch.empty(self._total, dtype=torch.float32, device=device).split(self._sizes)
        return [piece if size else None for piece, size in zip(pieces, self._sizes, strict=True)]
