"""Position encodings inside attention: rotations of queries and keys, or a bias of the scores.

Learned positions are added to the embedding, so they are a part of the network instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Table = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864), rotating the two halves of a head.

    Args:
        theta: Base of the wavelengths.
    """

    theta: float = 10000.0

    def table(
        self, start: int, length: int, head_dim: int, device: torch.device | None = None, dtype: Any = None
    ) -> Table:
        """Cosine and sine of ``length`` positions from ``start``, one column for each feature of a head.

        Angles are computed in float64 if the device supports it: float32 has too few digits for the fraction of a large
        position times a frequency.

        Args:
            start: The first position.
            length: Number of positions.
            head_dim: Width of a head.
            device: Device of the result.
            dtype: Dtype of the result.
        """
        precise = torch.float32 if device is not None and device.type == "mps" else torch.float64
        exponent = torch.arange(0, head_dim, 2, dtype=precise, device=device) / head_dim
        position = torch.arange(start, start + length, dtype=precise, device=device)
        angle = torch.outer(position, self.theta**-exponent).repeat(1, 2)
        return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, table: Table) -> Tensor:
    """Queries or keys, … × positions × features, rotated by the angles of their positions."""
    cos, sin = (part.to(x.dtype) for part in table)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


@dataclass(frozen=True)
class ALiBi:
    """A bias that decreases linearly with the distance (Press et al. 2022, arXiv 2108.12409).

    In an encoder it decreases on both sides. That is our choice: the paper covers decoders only.
    """

    def slopes(self, heads: int) -> list[float]:
        """One slope per head: 2^(-8/n), 2^(-16/n), … for a power of two n, otherwise the paper's interpolation."""
        whole = 2 ** math.floor(math.log2(heads))
        slopes = [2 ** (-8 * head / whole) for head in range(1, whole + 1)]
        return slopes + [2 ** (-4 * head / whole) for head in range(1, 2 * (heads - whole), 2)]

    def bias(self, queries: Tensor, keys: Tensor, heads: int) -> Tensor:
        """The bias of the scores, heads × queries × keys."""
        # Filled on the device: a CUDA graph cannot record a copy from the host.
        slopes = torch.stack([torch.full((), slope, device=keys.device) for slope in self.slopes(heads)])
        return -slopes[:, None, None] * (queries[:, None] - keys[None, :]).abs()
