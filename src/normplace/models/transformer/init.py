"""Initial weights of Transformers, and the layers that draw them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice
from normplace.placement import Placement

KINDS = ("depth", "fixed", "xavier")


@dataclass(frozen=True)
class WeightInit:
    """The standard deviation of every initial weight.

    Args:
        kind: ``depth`` divides ``std`` by the root of the number of branches in the network for the last matrix of each
            branch, as GPT-2 does, so that the variance of the stream does not grow with the depth; ``fixed`` uses
            ``std`` for every matrix; ``xavier`` is sqrt(2 / (fan-in + fan-out)) for every matrix (Glorot and Bengio
            2010), which the factors of DeepNorm and sub-LN assume.
        std: Standard deviation of matrices and embeddings; with ``xavier`` of embeddings only.
        depth: Number of layers.
        branches: Number of branches in a layer.

    Examples:
        >>> WeightInit("depth", std=0.02, depth=2).of(64, 64, last=True)
        0.01
    """

    kind: str = "depth"
    std: float = 0.02
    depth: int = 1
    branches: int = 2

    def __post_init__(self) -> None:
        expect_choice("kind of initial weights", self.kind, KINDS)
        if not self.std > 0:
            raise UsageError(f"the standard deviation of the initial weights must be positive, got {self.std}.")

    def of(self, fan_in: int, fan_out: int, last: bool = False) -> float:
        """The standard deviation of a matrix."""
        if self.kind == "xavier":
            return math.sqrt(2 / (fan_in + fan_out))
        return self.std / math.sqrt(self.branches * self.depth) if last and self.kind == "depth" else self.std


def suited_init(placement: Placement) -> str:
    """The default kind of initial weights for a placement.

    ``xavier`` if a norm follows the branch: the network is then invariant to the scale of the branch's last matrix, so
    a small initial matrix only causes large relative updates (docs/howto/initialization.md). Also ``xavier`` if the
    placement scales initial weights, as DeepNorm does; ``fixed`` if it scales norms by depth; otherwise ``depth``.
    """
    specs = placement.all_specs
    if any(spec.output or spec.init_gain != 1 for spec in specs):
        return "xavier"
    if any(spec.input_scale != 1 or spec.input_gain != 1 for spec in specs):
        return "fixed"
    return "depth"


class Projection(nn.Linear):
    """A linear map with normally distributed initial weights and a zero initial bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        std: float = 0.02,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self.std, self._generator = std, generator
        super().__init__(in_features, out_features, bias, device, dtype)
        self._generator = None

    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        nn.init.normal_(self.weight, std=self.std, generator=self._generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """An embedding table with normally distributed initial values.

    On a CPU, an index outside the table raises a :class:`~normplace.UsageError`. A GPU raises its own assertion: the
    check would have to wait for the device.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        std: float = 0.02,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self.std, self._generator = std, generator
        super().__init__(rows, dim, device=device, dtype=dtype)
        self._generator = None

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        nn.init.normal_(self.weight, std=self.std, generator=self._generator)

    def forward(self, input: Tensor) -> Tensor:
        """The entries at these indices."""
        try:
            return super().forward(input)
        except IndexError as error:
            raise UsageError(
                f"indices must be from 0 to {self.num_embeddings - 1}, got {int(input.min())} to {int(input.max())}: "
                "was the model built for another vocabulary?"
            ) from error
