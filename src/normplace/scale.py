"""A positive multiplier that carries information, standing before or after a norm.

The whole of PostDeg (arXiv 2606.14022) is one of these: ``Scale("degree", power=-1, where="after")``. A norm over
features obeys ``LN(s x) = s (x - mean) / sqrt(s² var + eps)``, so before it the scalar is divided out up to eps, and
after it the scalar reaches the next layer as the length of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown

WHERE = ("before", "after")


@dataclass(frozen=True)
class Scale:
    """A per-row scalar raised to a power, multiplied in beside one norm.

    Args:
        source: What the scalar is, for people and equations: ``degree``, ``k-core``, anything positive.
        power: The exponent it is raised to.
        where: ``before`` or ``after`` the norm.
        slot: The slot whose norm it stands beside; None means the only one there is.

    Example:
        >>> Scale("degree", power=-1).symbol
        'degree^-1'
    """

    source: str
    power: float = 1.0
    where: str = "after"
    slot: str | None = None

    def __post_init__(self) -> None:
        if self.where not in WHERE:
            raise unknown("side of a norm", self.where, WHERE)
        if not self.source:
            raise UsageError("a scale needs the name of its source, such as 'degree'.")

    @property
    def symbol(self) -> str:
        """The scalar as an equation shows it."""
        return self.source if self.power == 1 else f"{self.source}^{self.power:g}"

    def factor(self, values: Tensor) -> Tensor:
        """The multiplier of each row, checked and ready to be passed to every block.

        Args:
            values: The raw positive scalar of each row, one dimension per leading dimension of the features.

        Raises:
            UsageError: If a value is not positive and finite, where the power would hide or amplify it.
        """
        x = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        bad = ~(torch.isfinite(x) & (x > 0))
        if bool(bad.any()):
            first = int(bad.flatten().nonzero()[0])
            raise UsageError(
                f"the scale {self.source!r} must be positive and finite, but row {first} has "
                f"{x.flatten()[first].item():g}: give such rows a stated value first (for degree, often 1)."
            )
        return x.pow(self.power).unsqueeze(-1)
