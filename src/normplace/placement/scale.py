"""A positive multiplier that carries information, standing before or after a norm.

The whole of PostDeg (arXiv 2606.14022) is one of these: ``Scale("degree", power=-1, where="after")``. A norm over
features obeys ``LN(s x) = s (x - mean) / sqrt(s² var + eps)``, so before it the scalar is divided out up to eps, and
after it the scalar reaches the next layer as the length of the row.

A :class:`Gate` puts capacity in the same slot: it learns what the scalar becomes, and starts as the scale itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_number, expect_whole, unknown

WHERE = ("before", "after")
GATES = ("learned", "mlp")


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
        if not self.source or not isinstance(self.source, str):
            raise UsageError(f"a scale needs the name of its source, such as 'degree', got {self.source!r}.")
        expect_number("the power of a scale", self.power)

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
        if not isinstance(values, Tensor) or values.is_complex():
            found = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise UsageError(f"the scale {self.source!r} needs a tensor of real numbers, got {found}.")
        x = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        bad = ~(torch.isfinite(x) & (x > 0))
        if bool(bad.any()):
            first = int(bad.flatten().nonzero()[0])
            raise UsageError(
                f"the scale {self.source!r} must be positive and finite, but row {first} has "
                f"{x.flatten()[first].item():g}: give such rows a stated value first (for degree, often 1)."
            )
        return x.pow(self.power).unsqueeze(-1)


class Gate(nn.Module):
    """A trained map from a scale's factor s to a positive factor, in the slot of the scale (our definition).

    ``learned`` is ``exp(a log s + b)``, one exponent and one gain; ``mlp`` is ``s exp(f(log s))`` with f a network of
    one hidden layer. Both start as ``s`` exactly, so that nothing but their training tells them from the plain scale.

    Args:
        kind: ``learned`` or ``mlp``.
        hidden: Width of the hidden layer of ``mlp``.
        device: Where the parameters live.
        dtype: Their dtype.

    Example:
        >>> Gate("learned")(torch.tensor([[0.5], [2.0]])).flatten().tolist()
        [0.5, 2.0]
    """

    def __init__(
        self, kind: str, hidden: int = 16, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if kind not in GATES:
            raise unknown("gate", kind, GATES)
        expect_whole(1, hidden=hidden)
        self.kind, self.hidden = kind, hidden
        self.power = self.first = self.last = None
        if kind == "learned":
            self.power = nn.Parameter(torch.empty(2, device=device, dtype=dtype))  # exponent and log-gain
        else:
            self.first = nn.Linear(1, hidden, device=device, dtype=dtype)
            self.last = nn.Linear(hidden, 1, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Back to the plain scale; the hidden layer is drawn anew."""
        if self.power is not None:
            with torch.no_grad():
                self.power.copy_(torch.tensor([1.0, 0.0]))
        if self.first is not None and self.last is not None:
            self.first.reset_parameters()
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)

    def forward(self, factor: Tensor) -> Tensor:
        """The positive factor of each row, from the one :meth:`Scale.factor` gave."""
        log = factor.log()
        if self.power is not None:
            return (self.power[0] * log + self.power[1]).exp()
        assert self.first is not None and self.last is not None
        return factor * self.last(torch.tanh(self.first(log.to(self.first.weight.dtype)))).exp().to(factor.dtype)

    def extra_repr(self) -> str:
        """Which map it is."""
        return self.kind
