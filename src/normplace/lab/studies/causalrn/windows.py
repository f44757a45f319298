"""CausalRN with windows: some heads relate a token to the last few tokens only.

This is Hard-ALiBi (Jelassi et al. 2024, arXiv 2402.01032) for relations: head m reads the last m tokens, including the
token itself, and the remaining heads read all tokens so far. With a window a token can read its neighbors, at any
length of the sequence. The transfer from attention to relations is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.models.sequence import Relation, RelationBranch
from normplace.models.transformer import WeightInit
from normplace.ops.relation import relation_pairwise


class WindowedBranch(RelationBranch):
    """The pairwise form with a joint norm and the exponential; only for whole sequences without padding."""

    windows: int = 0
    """Number of heads with a window."""

    def relate(self, a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        """The mean over the pairs of each head, normalized over all channels."""
        assert mask is None
        heads, eps = self.options["heads"], self.options["eps"]
        width = a.shape[-1] // heads
        parts = [
            windowed_mean(a[..., first : first + width], b[..., first : first + width], window, eps)
            for window, first in enumerate(range(0, self.windows * width, width), start=1)
        ]
        if self.windows < heads:
            rest = (side[..., self.windows * width :] for side in (a, b))
            parts.append(relation_pairwise(*rest, heads=heads - self.windows, eps=eps).float())
        y = torch.cat(parts, -1)
        return (F.layer_norm(y, y.shape[-1:], eps=eps) if self.options["post_norm"] else y).to(a.dtype)


def windowed_mean(a: Tensor, b: Tensor, window: int, eps: float) -> Tensor:
    """``exp(N(a_i + b_j))`` with a norm N over channels, averaged over the last ``window`` tokens j <= i.

    It is computed in at least float32.
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    a, b, length = a.to(wide), b.to(wide), a.shape[1]
    total = torch.zeros_like(a)
    for distance in range(min(window, length)):
        pairs = a[:, distance:] + b[:, : length - distance]
        total = total + F.pad(F.layer_norm(pairs, pairs.shape[-1:], eps=eps).exp(), (0, 0, distance, 0))
    return total / torch.arange(1, length + 1, device=a.device).clamp(max=window)[:, None]


@dataclass(frozen=True)
class WindowedRelation(Relation):
    """CausalRN's branch with windows in its first ``windows`` heads."""

    branch: ClassVar[type[RelationBranch]] = WindowedBranch
    windows: int = 0

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """One branch, as in :class:`Relation`."""
        branches = super().branches(dim, positions, init, **factory)
        for branch in branches:
            assert isinstance(branch, WindowedBranch)
            branch.windows = self.windows
        return branches
