"""How a weight of a Hugging Face model holds one or several of this package's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.models.transformer.config import TransformerConfig


@dataclass(frozen=True)
class Layout:
    """How one of their weights holds one or several of ours. A bias is laid out like the rows of its weight.

    Args:
        unpack: Converts theirs to ours, given the row counts of ours and the configuration.
        pack: Converts ours to theirs, given the configuration.
    """

    unpack: Callable[[Tensor, Sequence[int], TransformerConfig], Sequence[Tensor]]
    pack: Callable[[Sequence[Tensor], TransformerConfig], Tensor]


def _by_groups(fused: Tensor, rows: Sequence[int], config: TransformerConfig) -> Sequence[Tensor]:
    width, groups = config.head_dim, config.attention.key_value_heads or config.attention.heads
    parts = fused.unflatten(0, (groups, -1, width))
    return parts[:, :-2].flatten(0, 2), parts[:, -2].flatten(0, 1), parts[:, -1].flatten(0, 1)


def _to_groups(ours: Sequence[Tensor], config: TransformerConfig) -> Tensor:
    groups = config.attention.key_value_heads or config.attention.heads
    return torch.cat([part.unflatten(0, (groups, -1, config.head_dim)) for part in ours], 1).flatten(0, 2)


SAME = Layout(lambda weight, rows, config: [weight], lambda ours, config: ours[0])
TRANSPOSED = Layout(lambda weight, rows, config: [weight.t()], lambda ours, config: ours[0].t())
# They add 1 + w in float32, which half precision would round; our norms accept a gain wider than the stream.
SHIFTED = Layout(
    lambda gain, rows, config: [gain.to(torch.promote_types(gain.dtype, torch.float32)) + 1],
    lambda ours, config: ours[0] - 1,
)
CONCATENATED = Layout(lambda fused, rows, config: fused.split(list(rows)), lambda ours, config: torch.cat(list(ours)))
TRANSPOSED_CONCATENATED = Layout(
    lambda fused, rows, config: fused.t().split(list(rows)), lambda ours, config: torch.cat(list(ours)).t()
)
ONE_ROW_EACH = Layout(lambda weight, rows, config: weight.unbind(), lambda ours, config: torch.stack(list(ours)))
STACKED = Layout(lambda fused, rows, config: fused.chunk(2, 1), lambda ours, config: torch.cat(list(ours), 1))
"""The gates and the other input matrices of all experts, experts × rows × columns."""
TRANSPOSED_STACKED = Layout(
    lambda fused, rows, config: fused.transpose(1, 2).chunk(2, 1),
    lambda ours, config: torch.cat(list(ours), 1).transpose(1, 2),
)
TRANSPOSED_MATRICES = Layout(
    lambda weight, rows, config: [weight.transpose(1, 2)], lambda ours, config: ours[0].transpose(1, 2)
)
BY_GROUPS = Layout(_by_groups, _to_groups)
"""For each head of keys: its queries, then its key and its value."""
