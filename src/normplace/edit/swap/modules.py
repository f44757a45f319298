"""The modules that a swap puts in the place of a norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, expect_number
from normplace.norms import RMSNorm


class FeatureGroupNorm(nn.GroupNorm):
    """Group normalization (Wu, He 2018, arXiv 1803.08494) of the features of each row, features last."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each group of features of every row."""
        rows = input.reshape(-1, self.num_channels)
        return F.group_norm(rows, self.num_groups, self.weight, self.bias, self.eps).reshape(input.shape)


class ShiftedRMSNorm(RMSNorm):
    """RMSNorm plus a shift, which keeps the shift of the norm that it replaces."""

    def __init__(
        self, width: int, eps: float, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(width, eps, device=device, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(width, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension, then shift it."""
        return super().forward(x) + self.bias.to(x.dtype)


class WrappedNorm(nn.Module):
    """A norm over the last dimension in a place where norms are called in another way."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    @property
    def weight(self) -> Tensor | None:
        """The norm's gain; some forward code reads its dtype."""
        return getattr(self.norm, "weight", None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        return self.norm(x)


class ChannelsFirst(WrappedNorm):
    """Applies a norm over the last dimension to the channels, dimension 1, of feature maps."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the channels at every position."""
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class NodeNorm(WrappedNorm):
    """Applies a norm to each node's features, and takes the batch like PyG's norms."""

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize the features of every node, whichever graph it belongs to."""
        return self.norm(x)


class ChannelAffine(nn.Module):
    """A gain and a shift per channel, which replace a norm in a norm-free network."""

    def __init__(
        self, width: int, bias: bool = True, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(width, device=device, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift the last dimension."""
        y = x * self.weight.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


class FadingNorm(nn.Module):
    """A mixture of two norms, ``(1 - strength) * old(x) + strength * new(x)``.

    :func:`set_strength` changes the strength during training.

    Args:
        old: The norm that is replaced.
        new: Its replacement.
        strength: The share of the replacement, from 0 to 1.
    """

    def __init__(self, old: nn.Module, new: nn.Module, strength: float) -> None:
        super().__init__()
        self.old, self.new = old, new
        # A buffer rather than a number: compiled code reads it, and is not compiled again when it changes.
        self.register_buffer("strength", torch.tensor(float(strength), dtype=torch.float32))

    @property
    def weight(self) -> Tensor | None:
        """The gain of the replacement; some forward code reads its dtype."""
        return getattr(self.new, "weight", None)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Mix the results of both norms; at 0 and 1 exactly one of them remains."""
        old, new = self.old(x, *args, **kwargs), self.new(x, *args, **kwargs)
        return torch.lerp(old, new, self.get_buffer("strength").to(old))

    def extra_repr(self) -> str:
        """Show the strength."""
        strength = self.get_buffer("strength")
        return "" if strength.is_meta else f"strength={float(strength):g}"


def set_strength(model: nn.Module, strength: float) -> int:
    """Change the strength of every gradual swap of a model, in place; call it during training.

    Args:
        model: A model that :func:`normplace.swap` returned with ``strength=``.
        strength: The share of the new norms, from 0 (the old norms) to 1.

    Returns:
        The number of norms.

    Raises:
        UsageError: If the strength is not from 0 to 1, or the model has no gradual swap.
    """
    check_strength(strength)
    fading = [module for module in model.modules() if isinstance(module, FadingNorm)]
    if not fading:
        raise UsageError("the model has no gradual swap: make one with normplace.swap(model, x, norm=…, strength=0.0).")
    for module in fading:
        module.get_buffer("strength").fill_(strength)
    return len(fading)


def check_strength(strength: float) -> None:
    """Check that a strength is a number from 0 to 1.

    Raises:
        UsageError: If it is not.
    """
    expect_number("strength", strength, 0)
    if strength > 1:
        raise UsageError(f"strength must be from 0 to 1, got {strength}.")
