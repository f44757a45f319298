"""Softmax and power-mean aggregation with PyG's arguments."""

from __future__ import annotations

from torch_geometric.nn.aggr import Aggregation as PygAggregation

from normplace.errors import UsageError
from normplace.models.aggregation import Aggregation, Clamp


class SoftmaxAggregation(Aggregation, PygAggregation):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Softmax-weighted mean of each group and channel, as PyG's ``SoftmaxAggregation`` (Li et al. 2020, 2006.07739).

    Args:
        t: Inverse temperature.
        learn: Whether it is learned.
        semi_grad: Treat the softmax weights as constants in the backward pass.
        channels: Number of learned temperatures: 1, or one for each channel.

    Raises:
        UsageError: If a learned temperature would get no gradient, or fixed ones are requested per channel.

    Examples:
        >>> import torch
        >>> SoftmaxAggregation()(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1]))
        tensor([[1.7311],
                [3.0000]])
    """

    def __init__(self, t: float = 1.0, learn: bool = False, semi_grad: bool = False, channels: int = 1) -> None:
        if learn and semi_grad:
            raise UsageError("semi_grad=True gives the temperature no gradient: leave learn or semi_grad out.")
        super().__init__("softmax_sg" if semi_grad else "softmax", t=t, learn_t=learn, channels=channels)
        self.learn, self.semi_grad = learn, semi_grad

    def __repr__(self) -> str:
        return f"{type(self).__name__}(learn={self.learn})"


class PowerMeanAggregation(Aggregation, PygAggregation):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Power mean of each group and channel, as PyG's ``PowerMeanAggregation`` (Li et al. 2020, arXiv 2006.07739).

    Rows, and the mean of their powers, are clamped as in PyG, unless the power is a fixed 1; pass None for no bound. At
    a power of 0 it is the geometric mean, where PyG returns 1.

    Args:
        p: The power.
        learn: Whether it is learned.
        channels: Number of learned powers: 1, or one for each channel.
        clamp_min: Lower bound.
        clamp_max: Upper bound.

    Raises:
        UsageError: If fixed powers are requested per channel.
    """

    def __init__(
        self,
        p: float = 1.0,
        learn: bool = False,
        channels: int = 1,
        clamp_min: float | None = 1e-4,
        clamp_max: float | None = 100.0,
    ) -> None:
        super().__init__("powermean", p=p, learn_p=learn, channels=channels, clamp=Clamp(clamp_min, clamp_max))
        self.learn, self.min_value, self.max_value = learn, clamp_min, clamp_max

    def __repr__(self) -> str:
        return f"{type(self).__name__}(learn={self.learn})"
