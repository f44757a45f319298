"""PyG's ``DeepGCNLayer``: a graph convolution with norm, activation, dropout and skip, in four orders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normplace.errors import UsageError, unknown
from normplace.models.scripting import Unscriptable

BLOCKS = ("res+", "res", "dense", "plain")


class DeepGCNLayer(Unscriptable, nn.Module):
    """One layer of a deep graph network (Li et al. 2019, arXiv 1904.03751; Li et al. 2020, arXiv 2006.07739).

    ``res+`` is norm, activation, dropout, convolution, add. The others are convolution, norm, activation, then add
    (``res``), concatenation (``dense``) or neither (``plain``), then dropout. Whole networks with these orders, any
    placement and less memory are :class:`normplace.models.GraphStack`. Unlike PyG's, a checkpointed layer takes
    arguments by name, and the first layer is checkpointed too, whose input needs no gradient.

    Args:
        conv: The convolution.
        norm: The norm, or None.
        act: The activation, or None.
        block: ``res+``, ``res``, ``dense`` or ``plain``.
        dropout: Dropout probability.
        ckpt_grad: Whether the convolution is recomputed in the backward pass instead of stored.

    Raises:
        UsageError: If there is no convolution, or no such block.
    """

    def __init__(
        self,
        conv: nn.Module | None = None,
        norm: nn.Module | None = None,
        act: nn.Module | None = None,
        block: str = "res+",
        dropout: float = 0.0,
        ckpt_grad: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(conv, nn.Module):
            raise UsageError(f"DeepGCNLayer needs a convolution, got {type(conv).__name__}: pass conv=GENConv(...).")
        if not isinstance(block, str) or block.lower() not in BLOCKS:
            raise unknown("block", block, BLOCKS)
        self.conv, self.norm, self.act = conv, norm, act
        self.block, self.dropout, self.ckpt_grad = block.lower(), dropout, ckpt_grad

    def reset_parameters(self) -> None:
        """Reset the convolution and the norm."""
        for module in (self.conv, self.norm):
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The output of the layer; further arguments are those of the convolution."""
        if self.block == "res+":
            return x + self._convolve(self._drop(self._activate(x)), *args, **kwargs)
        out = self._activate(self._convolve(x, *args, **kwargs))
        if self.block == "res":
            out = x + out
        elif self.block == "dense":
            out = torch.cat([x, out], dim=-1)
        return self._drop(out)

    def _activate(self, x: Tensor) -> Tensor:
        x = x if self.norm is None else self.norm(x)
        return x if self.act is None else self.act(x)

    def _drop(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.dropout, self.training)

    def _convolve(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.ckpt_grad and torch.is_grad_enabled():
            return checkpoint(self.conv, x, *args, use_reentrant=False, **kwargs)
        return self.conv(x, *args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(block={self.block})"
