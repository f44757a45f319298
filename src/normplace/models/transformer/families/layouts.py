"""How a weight of a Hugging Face model holds one or several of this package's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.models.transformer.config import TransformerConfig


@dataclass(frozen=True)
class Layout:
    """How a weight of Hugging Face holds one or several weights here. A bias is laid out like the rows of its weight.

    Args:
        unpack: Converts a weight of Hugging Face, given the row counts of the weights here and the configuration.
        pack: Converts the weights here to one of Hugging Face, given the configuration.
    """

    unpack: Callable[[Tensor, Sequence[int], TransformerConfig], Sequence[Tensor]]
    pack: Callable[[Sequence[Tensor], TransformerConfig], Tensor]


def _by_groups(fused: Tensor, rows: Sequence[int], config: TransformerConfig) -> Sequence[Tensor]:
    width, groups = config.head_dim, config.attention.key_value_heads or config.attention.heads
    parts = fused.unflatten(0, (groups, -1, width))
    return parts[:, :-2].flatten(0, 2), parts[:, -2].flatten(0, 1), parts[:, -1].flatten(0, 1)


def _to_groups(weights: Sequence[Tensor], config: TransformerConfig) -> Tensor:
    groups = config.attention.key_value_heads or config.attention.heads
    return torch.cat([part.unflatten(0, (groups, -1, config.head_dim)) for part in weights], 1).flatten(0, 2)


SAME = Layout(lambda weight, rows, config: [weight], lambda weights, config: weights[0])
TRANSPOSED = Layout(lambda weight, rows, config: [weight.t()], lambda weights, config: weights[0].t())
# Hugging Face adds 1 + w in float32, which half precision would round; norms here accept a gain wider than x.
SHIFTED = Layout(
    lambda gain, rows, config: [gain.to(torch.promote_types(gain.dtype, torch.float32)) + 1],
    lambda weights, config: weights[0] - 1,
)
CONCATENATED = Layout(
    lambda fused, rows, config: fused.split(list(rows)), lambda weights, config: torch.cat(list(weights))
)
TRANSPOSED_CONCATENATED = Layout(
    lambda fused, rows, config: fused.t().split(list(rows)), lambda weights, config: torch.cat(list(weights)).t()
)
ONE_ROW_EACH = Layout(lambda weight, rows, config: weight.unbind(), lambda weights, config: torch.stack(list(weights)))
STACKED = Layout(lambda fused, rows, config: fused.chunk(2, 1), lambda weights, config: torch.cat(list(weights), 1))
"""The gates and the other input matrices of all experts, experts × rows × columns."""
TRANSPOSED_STACKED = Layout(
    lambda fused, rows, config: fused.transpose(1, 2).chunk(2, 1),
    lambda weights, config: torch.cat(list(weights), 1).transpose(1, 2),
)
TRANSPOSED_MATRICES = Layout(
    lambda weight, rows, config: [weight.transpose(1, 2)], lambda weights, config: weights[0].transpose(1, 2)
)
BY_GROUPS = Layout(_by_groups, _to_groups)
"""For each head of keys: its queries, then its key and its value."""
