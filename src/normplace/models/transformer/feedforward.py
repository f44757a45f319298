"""The MLP branch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice
from normplace.models.activations import build_activation
from normplace.models.transformer.init import Projection, WeightInit
from normplace.residual import Branch

KINDS: dict[str, tuple[str, bool]] = {
    "swiglu": ("silu", True),
    "geglu": ("gelu_tanh", True),
    "geglu-erf": ("gelu", True),
    "reglu": ("relu", True),
    "gelu": ("gelu", False),
    "gelu-tanh": ("gelu_tanh", False),
    "silu": ("silu", False),
    "relu": ("relu", False),
}
"""The activation of each kind, and whether a second projection gates it (Shazeer 2020, arXiv 2002.05202)."""


def hidden_width(dim: int, hidden: int | None, gated: bool) -> int:
    """The hidden width, with its default.

    Raises:
        UsageError: If a width is not positive.
    """
    width = (8 * math.ceil(dim / 3) if gated else 4 * dim) if hidden is None else hidden
    if min(dim, width) < 1:
        raise UsageError(f"the widths of an MLP must be at least 1, got {dim} and {width}.")
    return width


class FeedForward(Branch):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` if it is gated, as a branch.

    The norm site ``pre_output`` is before the last matrix (sub-LN, NormFormer).

    Args:
        dim: Width of the stream.
        hidden: Hidden width; by default ``4 dim``. A gated MLP has 2/3 of that, for the same number of parameters,
            rounded up to a multiple of 8, which is fast on GPUs.
        kind: A key of :data:`KINDS`.
        bias: Whether the projections have a bias.
        init: The initial weights.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If the kind is unknown or a width is not positive.
    """

    kind = "mlp"
    accepts_rounded_input = True

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        kind: str = "swiglu",
        bias: bool = False,
        init: WeightInit | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        expect_choice("kind of MLP", kind, KINDS)
        activation, gated = KINDS[kind]
        width = hidden_width(dim, hidden, gated)
        self.norm_sites = {"pre_output": width}
        init = WeightInit() if init is None else init

        def projection(fan_in: int, fan_out: int, last: bool = False) -> Projection:
            return Projection(fan_in, fan_out, bias, init.of(fan_in, fan_out, last), generator, device, dtype)

        self.gate = projection(dim, width) if gated else None
        self.up = projection(dim, width)
        self.down = projection(width, dim, last=True)
        self.activation = build_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to each token."""
        return self.down(self.normalize_at("pre_output", self.hidden(x)))

    def hidden(self, x: Tensor) -> Tensor:
        """The input of the last matrix, before its norm."""
        return self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
