"""The paper's convolution in every variant the study compares, in stacks of any order, depth and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

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
FIXED = ("mean", "max", "sum", "softmax")
LEARNED = ("softmax learned", "power mean learned")


def conv_factory(aggregation: str, *, msg_norm: bool = False, edge_dim: int | None = None) -> Callable[..., nn.Module]:
    """Builds a generalized convolution from the widths it reads and writes.

    Args:
        aggregation: A key of :data:`AGGREGATIONS`.
        msg_norm: Whether messages get the length of the node they reach, times a learned factor from 1.
        edge_dim: Width of the edge features, if there are any.

    Raises:
        UsageError: If there is no such aggregation.
    """
    if aggregation not in AGGREGATIONS:
        raise unknown("aggregation", aggregation, AGGREGATIONS)
    from normplace.models import GENConv

    options = AGGREGATIONS[aggregation] | {"msg_norm": msg_norm, "learn_msg_scale": msg_norm, "edge_dim": edge_dim}
    return lambda reads, writes: GENConv(reads, writes, num_layers=1, bias=True, **options)


def learned(model: nn.Module, suffix: str) -> list[float]:
    """The values of one learned scalar of every convolution, in their order.

    Args:
        model: A stack of convolutions.
        suffix: How the scalar's name ends: ``t``, ``p`` or ``msg_norm.scale``.
    """
    return [float(p.detach()) for name, p in model.named_parameters() if f".{name}".endswith(f".{suffix}")]
