"""The paper's convolution with every aggregation of the study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from normplace.errors import unknown

AGGREGATIONS: dict[str, dict[str, Any]] = {
    "mean": {"aggr": "mean"},
    "max": {"aggr": "max"},
    "sum": {"aggr": "add"},
    "softmax": {"aggr": "softmax", "t": 1.0},
    "softmax learned": {"aggr": "softmax", "t": 1.0, "learn_t": True},
    "power mean learned": {"aggr": "powermean", "p": 1.0, "learn_p": True},
}
"""Arguments of ``GENConv`` by name; learned scalars start at the paper's values."""
MORE_AGGREGATIONS: dict[str, dict[str, Any]] = {
    "softmax per channel": {"aggr": "softmax", "aggr_kwargs": {"t": 1.0, "learn": True}},
    "power mean": {"aggr": "powermean", "p": 2.0},
    "power mean per channel": {"aggr": "powermean", "aggr_kwargs": {"p": 1.0, "learn": True}},
    "softmax sum": {"aggr": "softmax_sum", "t": 1.0, "learn_t": True, "y": 0.5, "learn_y": True},
    "power sum": {"aggr": "powermean_sum", "p": 1.0, "learn_p": True, "y": 0.5, "learn_y": True},
}
"""Further aggregations: a fixed power of 2, because a power of 1 is the mean; a learned number for each channel; and
those that are multiplied by a learned power of the degree, which starts at the authors' 0.5."""
OWN_WEIGHTS = ", own weights"
"""Suffix of an aggregation's name: a node's own features have separate weights, as in the tuned networks of Luo et al.
(2024, arXiv 2406.08993). The paper's convolution uses the same weights for the node and its messages."""
FIXED = ("mean", "max", "sum", "softmax")
LEARNED = ("softmax learned", "power mean learned")


def conv_factory(aggregation: str, *, msg_norm: bool = False) -> Callable[..., nn.Module]:
    """A factory of generalized convolutions.

    Args:
        aggregation: A key of :data:`AGGREGATIONS` or :data:`MORE_AGGREGATIONS`, with or without :data:`OWN_WEIGHTS`.
        msg_norm: Whether to use MsgNorm with a learned scale.

    Raises:
        UsageError: If the aggregation is unknown.
    """
    check_aggregation(aggregation)
    from normplace.models import GENConv

    named = (AGGREGATIONS | MORE_AGGREGATIONS)[aggregation.removesuffix(OWN_WEIGHTS)]
    options: dict[str, Any] = named | {"msg_norm": msg_norm, "learn_msg_scale": msg_norm}

    def build(in_dim: int, out_dim: int) -> nn.Module:
        per_channel = {"aggr_kwargs": named["aggr_kwargs"] | {"channels": out_dim}} if "aggr_kwargs" in named else {}
        conv = GENConv(in_dim, out_dim, num_layers=1, bias=True, **options | per_channel)
        return OwnWeights(conv, in_dim, out_dim) if aggregation.endswith(OWN_WEIGHTS) else conv

    return build


def check_aggregation(name: str) -> None:
    """Raise an error for an unknown aggregation.

    Raises:
        UsageError: If the aggregation is unknown.
    """
    if name.removesuffix(OWN_WEIGHTS) not in AGGREGATIONS | MORE_AGGREGATIONS:
        raise unknown("aggregation", name, AGGREGATIONS | MORE_AGGREGATIONS)


class OwnWeights(nn.Module):
    """A convolution plus a linear map of the node's own features."""

    def __init__(self, conv: nn.Module, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv, self.own = conv, nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        """Apply both and add the results."""
        return self.conv(x, *edges) + self.own(x)


def convolution_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of the convolutions of a stack, in order."""
    return [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith("blocks.") and name.endswith("mlp.0.weight")
    ]


def learned_scalars(model: nn.Module, suffix: str) -> list[float]:
    """Values of a learned scalar of every convolution, in order; the mean where there is one for each channel.

    Args:
        model: A stack of convolutions.
        suffix: Suffix of the parameter name: ``t``, ``p``, ``y`` or ``msg_norm.scale``.
    """
    return [float(p.detach().mean()) for name, p in model.named_parameters() if f".{name}".endswith(f".{suffix}")]
