"""The modules that an edit adds to a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class NormPlaceholder(nn.Module):
    """Identity placeholder for a removed norm; a later move can fill it again.

    Args:
        slot: The slot of the removed norm.
        block: The index of its block, or of the block whose stream it ended.
        norm: The removed norm. Some forward code reads ``norm.weight.dtype``, so an empty buffer keeps it.
        device: The device of the model.
    """

    def __init__(self, slot: str, block: int | None, norm: nn.Module, device: torch.device | None = None) -> None:
        super().__init__()
        self.slot, self.block = slot, block
        weight = getattr(norm, "weight", None)
        if weight is not None:
            self.register_buffer("weight", weight.new_empty(0, requires_grad=False), persistent=False)
        if not norm.state_dict():
            self.register_buffer(
                "removed", torch.empty(0, device=device)
            )  # keeps the state dict from loading into the original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the first argument."""
        return args[0] if args else next(iter(kwargs.values()))

    def extra_repr(self) -> str:
        """Describe the removed norm."""
        return self.slot if self.block is None else f"{self.slot} of block {self.block}"


class LearnedScaling(nn.Module):
    """Learned multiplier of a branch output: one number per channel (LayerScale), or a single number."""

    def __init__(
        self, shape: tuple[int, ...], init: float, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, init, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the branch output."""
        return x * self.weight.to(x.dtype)


class FixedScaling(nn.Module):
    """Fixed multiplier.

    A buffer holds it too, so the state dict of a scaled model does not load into an unscaled one.
    """

    def __init__(self, factor: float, device: torch.device | None = None) -> None:
        super().__init__()
        self.factor = factor
        # Not in double precision, which some devices do not have.
        self.register_buffer("number", torch.tensor(factor, dtype=torch.float32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the input."""
        return x * self.factor

    def extra_repr(self) -> str:
        """Show the multiplier."""
        return f"{self.factor:.6g}"


class SkipScaling(FixedScaling):
    """Fixed multiplier of a skip, as DeepNorm has it."""


class HeadNorm(nn.Module):
    """Norm over the features of each attention head, applied to the concatenated heads."""

    def __init__(self, norm: nn.Module, size: int) -> None:
        super().__init__()
        self.norm, self.size = norm, size

    def forward(self, x: Tensor) -> Tensor:
        """Normalize every head."""
        return self.norm(x.unflatten(-1, (-1, self.size))).flatten(-2)


class JoinedHeadsNorm(nn.Module):
    """Norm over the features of all attention heads together, applied to separate heads.

    Args:
        norm: A norm over the features of all heads.
        axes: The axes of the heads and of the features of a head, counted from the end.
    """

    def __init__(self, norm: nn.Module, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.norm, self.axes = norm, axes

    def forward(self, x: Tensor) -> Tensor:
        """Normalize all heads of every token."""
        last = tuple(range(-len(self.axes), 0))
        joined = x.movedim(self.axes, last)
        normed = self.norm(joined.flatten(-len(self.axes)))
        return normed.unflatten(-1, joined.shape[-len(self.axes) :]).movedim(last, self.axes)

    def extra_repr(self) -> str:
        """Show the axes."""
        return f"axes={self.axes}"
