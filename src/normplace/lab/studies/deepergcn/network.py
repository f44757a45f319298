"""The paper's convolution in every variant the study compares, in stacks of any order, depth and dropout."""

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
"""How a node's messages become one; the learned ones start where the paper's do."""
OWN = ", own weights"
"""After the name of an aggregation: a node's own row has a matrix of its own, as in the tuned networks of Luo et al.
(2024, arXiv 2406.08993); the paper's convolution adds the row to the messages and has one matrix for both."""
FIXED = ("mean", "max", "sum", "softmax")
LEARNED = ("softmax learned", "power mean learned")


def conv_factory(aggregation: str, *, msg_norm: bool = False, edge_dim: int | None = None) -> Callable[..., nn.Module]:
    """Builds a generalized convolution from the widths it reads and writes.

    Args:
        aggregation: A key of :data:`AGGREGATIONS`, with or without :data:`OWN`.
        msg_norm: Whether messages get the length of the node they reach, times a learned factor from 1.
        edge_dim: Width of the edge features, if there are any.

    Raises:
        UsageError: If there is no such aggregation.
    """
    check_aggregation(aggregation)
    from normplace.models import GENConv

    named = AGGREGATIONS[aggregation.removesuffix(OWN)]
    options = named | {"msg_norm": msg_norm, "learn_msg_scale": msg_norm, "edge_dim": edge_dim}

    def build(reads: int, writes: int) -> nn.Module:
        conv = GENConv(reads, writes, num_layers=1, bias=True, **options)
        return OwnWeights(conv, reads, writes) if aggregation.endswith(OWN) else conv

    return build


def check_aggregation(name: str) -> None:
    """Refuse what :func:`conv_factory` does not know.

    Args:
        name: Of an aggregation.

    Raises:
        UsageError: If there is no such aggregation.
    """
    if name.removesuffix(OWN) not in AGGREGATIONS:
        raise unknown("aggregation", name, AGGREGATIONS)


class OwnWeights(nn.Module):
    """A convolution and, added to it, a linear map of the node's own row.

    Args:
        conv: The convolution.
        reads: Width of a row.
        writes: Width of what the convolution returns.
    """

    def __init__(self, conv: nn.Module, reads: int, writes: int) -> None:
        super().__init__()
        self.conv, self.own = conv, nn.Linear(reads, writes, bias=False)

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        """The sum, for the arguments of the convolution."""
        return self.conv(x, *edges) + self.own(x)


def learned(model: nn.Module, suffix: str) -> list[float]:
    """The values of one learned scalar of every convolution, in their order.

    Args:
        model: A stack of convolutions.
        suffix: How the scalar's name ends: ``t``, ``p`` or ``msg_norm.scale``.
    """
    return [float(p.detach()) for name, p in model.named_parameters() if f".{name}".endswith(f".{suffix}")]
