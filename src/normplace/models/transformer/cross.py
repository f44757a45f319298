"""Cross-attention: the branch by which a decoder reads the output of an encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.models.transformer.attention import Attention, as_bias, check_mask
from normplace.models.transformer.cache import LayerCache


class CrossAttention(Attention):
    """Attention to the output of an encoder (Vaswani et al. 2017, arXiv 1706.03762), as a branch.

    It has the arguments, norm sites and kind of :class:`Attention`, so a placement treats both in the same way. It has
    no positions, and it is not causal.
    """

    def __init__(self, dim: int, heads: int, **options: Any) -> None:
        super().__init__(dim, heads, causal=False, **options)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """The attention output of each token.

        Args:
            x: Tokens of the decoder, batch × length × dim.
            memory: The encoder's output, batch × source × dim; None if the cache has its keys and values.
            mask: True for tokens of the source that may be attended to, batch × source; None for all.
            cache: Keeps the keys and values of the memory from the first call on.

        Raises:
            UsageError: If there is no memory.
        """
        q = self._heads("q", self.query(x), self.heads)
        if cache is not None and cache.memory is not None:
            k, v = cache.memory
        elif memory is not None:
            k = self._heads("k", self.key(memory), self.key_value_heads)
            v = self._heads("v", self.value(memory), self.key_value_heads)
            if cache is not None:
                cache.memory = k, v
        else:
            raise UsageError("cross-attention reads the output of an encoder: pass it as memory.")
        return self._output(self._attend(q, k, v, mask))

    def _bias(self, q: Tensor, k: Tensor, mask: Tensor | None, before: int) -> Tensor:
        """The bias of the scores: minus infinity for masked tokens of the source."""
        if mask is None:
            return torch.zeros(q.shape[2], k.shape[2], dtype=q.dtype, device=q.device)
        check_mask(mask, q, k)
        return as_bias(mask.bool()[:, None, None, :].expand(-1, 1, q.shape[2], -1), q.dtype)
