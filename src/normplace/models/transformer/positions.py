"""Position encodings inside attention: rotations of queries and keys, or a bias of the scores.

Learned positions are added to the embedding, so they are a part of the network instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normplace.models.transformer.rotary_scaling import RotaryScaling

Table = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864), rotating pairs of features of a head.

    Args:
        theta: Base of the wavelengths.
        features: Number of features that rotate, the first of each head; None for all.
        interleaved: Whether pairs are neighbours, as in GPT-J; otherwise a feature of the first half and one of the
            second half form a pair.
        scaling: Scaling of the frequencies; None for none.
    """

    theta: float = 10000.0
    features: int | None = None
    interleaved: bool = False
    scaling: RotaryScaling | None = None

    def table(
        self, start: int, length: int, head_dim: int, device: torch.device | None = None, dtype: Any = None
    ) -> Table:
        """Cosine and sine of ``length`` positions from ``start``, one column for each rotating feature of a head.

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
        width = head_dim if self.features is None else self.features
        exponent = torch.arange(0, width, 2, dtype=precise, device=device) / width
        position = torch.arange(start, start + length, dtype=precise, device=device)
        if self.scaling is None:
            frequencies, amplitude = self.theta**-exponent, 1.0
        else:
            frequencies = self.scaling.frequencies(self.theta, exponent, start + length)
            amplitude = self.scaling.amplitude
        angle = torch.outer(position, frequencies)
        angle = angle.repeat_interleave(2, 1) if self.interleaved else angle.repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        if amplitude != 1:
            cos, sin = amplitude * cos, amplitude * sin
        return cos.to(dtype), sin.to(dtype)

    def rotate(self, x: Tensor, table: Table) -> Tensor:
        """Queries or keys, … × positions × features, rotated by the angles of their positions."""
        width = table[0].shape[-1]
        if width == x.shape[-1]:
            return rotate(x, table, self.interleaved)
        return torch.cat((rotate(x[..., :width], table, self.interleaved), x[..., width:]), -1)


def rotate(x: Tensor, table: Table, interleaved: bool = False) -> Tensor:
    """Features, … × positions × features, rotated by the angles of their positions.

    Args:
        x: The features.
        table: Cosine and sine of the positions.
        interleaved: Whether pairs are neighbours, instead of in the two halves.
    """
    cos, sin = (part.to(x.dtype) for part in table)
    if interleaved:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        return x * cos + torch.stack((-second, first), -1).flatten(-2) * sin
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

    def bias(self, queries: Tensor, keys: Tensor, heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The bias of the scores, heads × queries × keys, computed at least in float32."""
        # Filled on the device: a CUDA graph cannot record a copy from the host.
        precise = {"device": keys.device, "dtype": torch.promote_types(dtype, torch.float32)}
        slopes = torch.stack([torch.full((), slope, **precise) for slope in self.slopes(heads)])
        return (-slopes[:, None, None] * (queries[:, None] - keys[None, :]).abs()).to(dtype)
