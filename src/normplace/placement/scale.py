"""A positive multiplier that carries information, placed before or after a norm.

PostDeg (arXiv 2606.14022) is ``Scale("degree", power=-1, where="after")``. A norm over features satisfies
``LN(s x) = s (x - mean) / sqrt(s² var + eps)``. Before the norm, the scalar is divided out up to eps. After it, the
scalar reaches the next layer as the length of the row.

A :class:`Gate` is a trained map of the scalar that is initially the identity.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, expect_number, expect_whole

WHERE = ("before", "after")
GATES = ("learned", "mlp")


@dataclass(frozen=True)
class Scale:
    """A scalar per row, raised to a power and multiplied in before or after one norm.

    Args:
        source: Name of the scalar in equations and messages: ``degree``, ``k-core``, or any other positive quantity.
        power: The exponent.
        where: ``before`` or ``after`` the norm.
        slot: The slot of the norm; None for the only one.

    Examples:
        >>> Scale("degree", power=-1).symbol
        'degree^-1'
    """

    source: str
    power: float = 1.0
    where: str = "after"
    slot: str | None = None

    def __post_init__(self) -> None:
        expect_choice("side of a norm", self.where, WHERE)
        if not self.source or not isinstance(self.source, str):
            raise UsageError(f"a scale needs the name of its source, such as 'degree', got {self.source!r}.")
        expect_number("the power of a scale", self.power)

    @property
    def symbol(self) -> str:
        """The scalar as equations print it."""
        return self.source if self.power == 1 else f"{self.source}^{self.power:g}"

    def factor(self, values: Tensor) -> Tensor:
        """The multiplier of each row, as blocks take it.

        Args:
            values: The positive scalar of each row, with the leading dimensions of the features.

        Raises:
            UsageError: If a value or its power is not positive and finite.
        """
        if not isinstance(values, Tensor) or values.is_complex():
            kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise UsageError(f"the scale {self.source!r} needs a tensor of real numbers, got {kind}.")
        x = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        factor = x.pow(self.power)
        is_given = torch.isfinite(x) & (x > 0)
        invalid = ~(is_given & torch.isfinite(factor) & (factor > 0))
        if bool(invalid.any()):
            first = int(invalid.flatten().nonzero()[0])
            value = f"{x.flatten()[first].item():g}"
            if bool(is_given.flatten()[first]):
                raise UsageError(
                    f"the scale {self.symbol!r} is {factor.flatten()[first].item():g} for the value {value} of row "
                    f"{first} in {x.dtype}: choose a power closer to 0."
                )
            raise UsageError(
                f"the scale {self.source!r} must be positive and finite, but row {first} has {value}: replace such "
                "values first (for degree, often by 1)."
            )
        return factor.unsqueeze(-1)


class Gate(nn.Module):
    """A trained map from a scale's factor s to another positive factor (our definition).

    ``learned`` is ``exp(a log s + b)``, one exponent and one gain; ``mlp`` is ``s exp(f(log s))`` with f a network of
    one hidden layer. Both are initially exactly ``s``, so they differ from the plain scale by training only.

    Args:
        kind: ``learned`` or ``mlp``.
        hidden: Width of the hidden layer of ``mlp``.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Examples:
        >>> Gate("learned")(torch.tensor([[0.5], [2.0]])).flatten().tolist()
        [0.5, 2.0]
    """

    def __init__(
        self, kind: str, hidden: int = 16, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        expect_choice("gate", kind, GATES)
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
        """Reset to the plain scale, with a new random hidden layer."""
        if self.power is not None:
            with torch.no_grad():
                self.power.copy_(torch.tensor([1.0, 0.0]))
        if self.first is not None and self.last is not None:
            self.first.reset_parameters()
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)

    def forward(self, factor: Tensor) -> Tensor:
        """The positive factor of each row, from the result of :meth:`Scale.factor`."""
        log = factor.log()
        if self.power is not None:
            return (self.power[0] * log + self.power[1]).exp()
        assert self.first is not None and self.last is not None
        return factor * self.last(torch.tanh(self.first(log.to(self.first.weight.dtype)))).exp().to(factor.dtype)

    def extra_repr(self) -> str:
        """The kind of map."""
        return self.kind
