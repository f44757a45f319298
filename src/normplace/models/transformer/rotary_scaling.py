"""Scaled frequencies of rotary positions, for sequences longer than those of pretraining."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from normplace._shared.fields import check_types
from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.placement import known_fields


@dataclass(frozen=True)
class RotaryScaling(ABC):
    """A change of the frequencies ``theta^-e`` of rotary positions; d features have the exponents 0, 2/d, 4/d, ….

    Attributes:
        kind: Name of the method.
        amplitude: Multiplier of the rotated queries and keys.
    """

    kind: str = field(init=False, default="")
    amplitude = 1.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            if isinstance(value := getattr(self, entry.name), list):
                object.__setattr__(self, entry.name, tuple(value))
        check_types(self)

    @abstractmethod
    def frequencies(self, theta: float, exponents: Tensor, length: int) -> Tensor:
        """The frequencies for a sequence of ``length`` tokens.

        Args:
            theta: Base of the wavelengths.
            exponents: The exponents of the base.
            length: Number of tokens so far; only some methods depend on it.
        """

    def restarts_at(self) -> int | None:
        """The length above which keys in a cache no longer fit, so that it has to be computed anew; None for never."""
        return None


@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Position interpolation (Chen et al. 2023, arXiv 2306.15595): all frequencies divided by a factor.

    Args:
        factor: How much longer sequences are.
    """

    kind: str = field(init=False, default="linear")
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "factor", above=0)

    def frequencies(self, theta: float, exponents: Tensor, length: int) -> Tensor:
        """The frequencies for any length."""
        return theta**-exponents / self.factor


@dataclass(frozen=True)
class DynamicScaling(RotaryScaling):
    """Dynamic NTK scaling: beyond the original length, the base grows with the length.

    Keys in a cache keep the base of the length at which they were computed, as in Hugging Face.

    Args:
        factor: How fast the base grows.
        original_length: Length of the sequences in pretraining.
    """

    kind: str = field(init=False, default="dynamic")
    factor: float = 1.0
    original_length: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "factor", "original_length", least=1)

    def frequencies(self, theta: float, exponents: Tensor, length: int) -> Tensor:
        """The frequencies for a length."""
        pairs = len(exponents)
        if length <= self.original_length or pairs == 1:
            return theta**-exponents
        growth = self.factor * length / self.original_length - (self.factor - 1)
        return (theta * growth ** (pairs / (pairs - 1))) ** -exponents


@dataclass(frozen=True)
class YarnScaling(RotaryScaling):
    """YaRN (Peng et al. 2023, arXiv 2309.00071): low frequencies are divided by a factor, high ones are kept.

    Args:
        factor: How much longer sequences are.
        original_length: Length of the sequences in pretraining.
        amplitude: Multiplier of the rotated queries and keys.
        fast: Frequencies with more rotations than this over the original length are kept.
        slow: Frequencies with fewer rotations than this are divided by the factor.
        whole: Whether the ends of the ramp between them are rounded to whole pairs of features.
    """

    kind: str = field(init=False, default="yarn")
    factor: float = 1.0
    original_length: int = 2048
    amplitude: float = 1.0
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "factor", "fast", "slow", above=0)
        expect_ranges(self, "original_length", least=1)

    def frequencies(self, theta: float, exponents: Tensor, length: int) -> Tensor:
        """The frequencies for any length."""
        features = 2 * len(exponents)

        def pair_with(rotations: float) -> float:
            return features * math.log(self.original_length / (2 * math.pi * rotations)) / (2 * math.log(theta))

        low, high = pair_with(self.fast), pair_with(self.slow)
        low, high = (math.floor(low), math.ceil(high)) if self.whole else (low, high)
        low, high = max(low, 0), min(high, features - 1)
        high = high + 0.001 if low == high else high
        pairs = torch.arange(len(exponents), dtype=exponents.dtype, device=exponents.device)
        divided = ((pairs - low) / (high - low)).clamp(0, 1)
        kept = theta**-exponents
        return kept / self.factor * divided + kept * (1 - divided)


@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """The scaling of Llama 3.1 (arXiv 2407.21783): long wavelengths are stretched, short ones are kept.

    Args:
        factor: How much long wavelengths are stretched.
        original_length: Length of the sequences in pretraining.
        low: Wavelengths above ``original_length / low`` are stretched.
        high: Wavelengths below ``original_length / high`` are kept.
    """

    kind: str = field(init=False, default="llama3")
    factor: float = 8.0
    original_length: int = 8192
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "factor", "low", "high", above=0)
        expect_ranges(self, "original_length", least=1)
        if self.low >= self.high:
            raise UsageError(f"low must be less than high, got {self.low} and {self.high}.")

    def frequencies(self, theta: float, exponents: Tensor, length: int) -> Tensor:
        """The frequencies for any length."""
        kept = theta**-exponents
        rotations = self.original_length * kept / (2 * math.pi)
        share = ((rotations - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - share) * kept / self.factor + share * kept


@dataclass(frozen=True)
class LongScaling(RotaryScaling):
    """LongRoPE (Ding et al. 2024, arXiv 2402.13753): one divisor per frequency, for short and for long sequences.

    Args:
        short: Divisors up to the original length.
        long: Divisors beyond it.
        original_length: Length of the sequences in pretraining.
        amplitude: Multiplier of the rotated queries and keys.
    """

    kind: str = field(init=False, default="longrope")
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    original_length: int = 4096
    amplitude: float = 1.0

    def frequencies(self, theta: float, exponents: Tensor, length: int) -> Tensor:
        """The frequencies for a length."""
        divisors = self.long if length > self.original_length else self.short
        if len(divisors) != len(exponents):
            raise UsageError(f"{len(exponents)} rotary frequencies need one divisor each, got {len(divisors)}.")
        return theta**-exponents / torch.tensor(divisors, dtype=exponents.dtype, device=exponents.device)

    def restarts_at(self) -> int | None:
        """The original length."""
        return self.original_length


SCALINGS: dict[str, type[RotaryScaling]] = {
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "yarn": YarnScaling,
    "llama3": Llama3Scaling,
    "longrope": LongScaling,
}


def read_scaling(data: Mapping[str, Any]) -> RotaryScaling:
    """The scaling of a dictionary.

    Raises:
        UsageError: If the kind or a key is unknown.
    """
    settings = dict(data)
    kind = settings.pop("kind", None)
    expect_choice("kind of rotary scaling:", kind, SCALINGS)
    return SCALINGS[kind](**known_fields(SCALINGS[kind], settings))
