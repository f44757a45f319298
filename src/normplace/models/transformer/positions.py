"""Position encodings inside attention: rotations of queries and keys, or a bias of the scores, fixed or learned.

Learned positions are added to the embedding, so they are a part of the network instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
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


@dataclass(frozen=True)
class HardALiBi:
    """Windows of growing size (Jelassi et al. 2024, arXiv 2402.01032): head m attends to the last m tokens only.

    The remaining heads have no positions. A token is part of its own window. In an encoder a window covers both sides,
    which is our choice: the paper covers decoders only.

    Args:
        windows: Number of heads with a window; by default half of them, as in the paper's code.
    """

    windows: int | None = None

    def bias(self, queries: Tensor, keys: Tensor, heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The bias of the scores, heads × queries × keys: zero within a window, and minus infinity outside."""
        windows = heads // 2 if self.windows is None else self.windows
        size = torch.arange(1, heads + 1, device=keys.device)[:, None, None]
        outside = ((queries[:, None] - keys[None, :]).abs() >= size) & (size <= windows)
        return torch.zeros(outside.shape, dtype=dtype, device=keys.device).masked_fill_(outside, -math.inf)


class RelativeBias(nn.Module):
    """A learned bias for each head and bucket of distances (Raffel et al. 2020, arXiv 1910.10683), as in T5.

    Half of the buckets are for single distances, the others for ranges that grow logarithmically.

    Args:
        heads: Number of heads.
        buckets: Number of buckets.
        distance: Distance from which all are in the last bucket.
        causal: Whether there are only keys before the query; otherwise each side has half of the buckets.
        std: Standard deviation of the initial values.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If there are too few buckets, or the distance does not exceed the single distances.
    """

    def __init__(
        self,
        heads: int,
        buckets: int = 32,
        distance: int = 128,
        causal: bool = True,
        std: float = 0.02,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.buckets, self.distance, self.causal, self.std = buckets, distance, causal, std
        self.single = (buckets if causal else buckets // 2) // 2
        if self.single < 1 or distance <= self.single:
            raise UsageError(
                f"{buckets} buckets up to a distance of {distance} leave no range: choose more buckets, and a distance "
                f"above {max(1, self.single)}."
            )
        self.weight = nn.Parameter(torch.empty(buckets, heads, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=std, generator=generator)

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        nn.init.normal_(self.weight, std=self.std)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each signed distance, key minus query.

        The logarithm is in float32: at the end of a range its rounding decides, and checkpoints were trained with it.
        """
        side = self.buckets if self.causal else self.buckets // 2
        offset = 0 if self.causal else side * (distance > 0)
        distance = (-distance).clamp(min=0) if self.causal else distance.abs()
        scale = math.log(self.distance / self.single)
        far = (distance.clamp(min=1).float() / self.single).log() / scale * (side - self.single)
        far = (self.single + far.long()).clamp(max=side - 1)
        return offset + torch.where(distance < self.single, distance, far)

    def forward(self, before: int, length: int) -> Tensor:
        """The bias of the scores, heads × length × keys, for queries after ``before`` others that are keys too."""
        device = self.weight.device
        queries = torch.arange(before, before + length, device=device)
        keys = torch.arange(before + length, device=device)
        return self.weight[self.bucket(keys - queries[:, None])].permute(2, 0, 1)

    def extra_repr(self) -> str:
        """The main settings."""
        return f"{self.buckets} buckets up to {self.distance}"
