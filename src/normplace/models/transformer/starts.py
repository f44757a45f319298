"""Where the weights of a Transformer start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, unknown
from normplace.placement import Placement

KINDS = ("depth", "fixed", "xavier")


@dataclass(frozen=True)
class Start:
    """The standard deviation of every initial weight.

    Args:
        kind: ``depth`` divides ``std`` by sqrt(2 depth) for the last matrix of each branch, as GPT-2 does, so that the
            stream grows no further however many branches there are; ``fixed`` leaves it; ``xavier`` is
            sqrt(2 / (fan-in + fan-out)) for every matrix (Glorot and Bengio 2010), which DeepNorm's and sub-LN's
            factors are meant for.
        std: Standard deviation of matrices and embeddings; under ``xavier`` of embeddings only.
        depth: How many layers of two branches there are.

    Example:
        >>> Start("depth", std=0.02, depth=2).of(64, 64, last=True)
        0.01
    """

    kind: str = "depth"
    std: float = 0.02
    depth: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("start of the weights", self.kind, KINDS)
        if not self.std > 0:
            raise UsageError(f"the standard deviation of the initial weights must be positive, got {self.std}.")

    def of(self, fan_in: int, fan_out: int, last: bool = False) -> float:
        """The standard deviation of a matrix.

        Args:
            fan_in: Width it reads.
            fan_out: Width it writes.
            last: Whether it is the last of its branch.
        """
        if self.kind == "xavier":
            return math.sqrt(2 / (fan_in + fan_out))
        return self.std / math.sqrt(2 * self.depth) if last and self.kind == "depth" else self.std


def suited_kind(placement: Placement) -> str:
    """The kind of initial weights that suits a placement.

    ``xavier`` where a norm follows the branch: the network is then invariant to the scale of the branch's last matrix,
    so a small initial matrix only means large relative updates (docs/initialization.md). Also ``xavier`` where the
    placement scales initial weights, as DeepNorm does; ``fixed`` where it scales norms by depth; else ``depth``.
    """
    specs = placement.all_specs
    if any(spec.output or spec.init_gain != 1 for spec in specs):
        return "xavier"
    if any(spec.input_scale != 1 or spec.input_gain != 1 for spec in specs):
        return "fixed"
    return "depth"


class Projection(nn.Linear):
    """A linear map that remembers the standard deviation it starts with; its bias starts at zero.

    Args:
        in_features: Width read.
        out_features: Width written.
        bias: Whether there is one.
        std: Standard deviation of the initial weights.
        generator: Source of the initial values.
        device: Where the parameters live.
        dtype: Their dtype.
    """

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
        """Draw the weights anew."""
        nn.init.normal_(self.weight, std=self.std, generator=self._generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """A table of rows that remembers the standard deviation it starts with.

    Numbers of rows it does not have are refused on a CPU; a GPU would have to be waited for, and stops by itself.

    Args:
        rows: How many.
        dim: Their width.
        std: Standard deviation of the initial values.
        generator: Their source.
        device: Where the table lives.
        dtype: Its dtype.
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
        """Draw the table anew."""
        nn.init.normal_(self.weight, std=self.std, generator=self._generator)

    def forward(self, input: Tensor) -> Tensor:
        """The rows of these numbers."""
        try:
            return super().forward(input)
        except IndexError as problem:
            raise UsageError(
                f"tokens and types are numbers from 0 to {self.num_embeddings - 1} here, got {int(input.min())} to "
                f"{int(input.max())}: was the model made for another vocabulary?"
            ) from problem
