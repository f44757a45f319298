"""The two readings of the causal mask in the ablation.

``after`` (ours): a pair with a later token is left out of the sum. ``before`` (the published code): its normalized sum
is set to minus infinity before the activation, and the result is summed. For the exponential and ReLU both are the
same, because the activation of minus infinity is 0. ELU adds -1 for each later token,

    y_i = (sum_{j <= i} elu(n_ij) - (T - i)) / i,

with the length T of the sequence, and GELU is not a number, because it multiplies minus infinity by 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.models.sequence import Relation, RelationBranch
from normplace.ops.relation import relation_pairwise

MASKINGS = ("after", "before")
AT_MINUS_INFINITY = {"exp": 0.0, "relu": 0.0, "gelu": math.nan, "elu": -1.0}
"""Each activation of minus infinity, as PyTorch computes it."""


class MaskedBefore(RelationBranch):
    """The relation with the mask before the activation; only for whole sequences without padding."""

    def relate(self, a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        """The mean over the pairs of each token, with what the later tokens add."""
        assert mask is None
        options = {**self.options, "activation": self.activation, "post_norm": False}
        y = relation_pairwise(a, b, **options).float()
        value = AT_MINUS_INFINITY[self.activation]
        if value != 0:
            count = torch.arange(1, a.shape[1] + 1, device=a.device)[:, None]
            later = a.shape[1] - count
            y = torch.where(later > 0, y + value * later / count, y)
        return (F.layer_norm(y, y.shape[-1:], eps=self.options["eps"]) if self.options["post_norm"] else y).to(a.dtype)


@dataclass(frozen=True)
class MaskedBeforeRelation(Relation):
    """CausalRN's branch with the mask before the activation."""

    branch: ClassVar[type[RelationBranch]] = MaskedBefore
