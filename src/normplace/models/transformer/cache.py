"""Keys and values of the tokens already read, so that the next one costs one row of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.errors import UsageError

FIRST = 64


class LayerCache:
    """The keys and values of one attention branch; room doubles when it runs out, so each row moves twice at most."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to these, batch × heads × length × features.

        Args:
            keys: Those of the new tokens.
            values: The same.

        Raises:
            UsageError: If they carry gradients, or the batch is another one.
        """
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            raise UsageError("a cache holds no gradients: call the network under torch.no_grad(), or without a cache.")
        self._keys = self._with_room(self._keys, keys)
        self._values = self._with_room(self._values, values)
        end = self.length + keys.shape[2]
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _with_room(self, held: Tensor | None, new: Tensor) -> Tensor:
        if held is not None and held.shape[0] != new.shape[0]:
            raise UsageError(f"the cache holds {held.shape[0]} sequences, but {new.shape[0]} came: start a new cache.")
        needed = self.length + new.shape[2]
        if held is not None and needed <= held.shape[2]:
            return held
        room = FIRST
        while room < needed:
            room *= 2
        grown = new.new_empty(*new.shape[:2], room, new.shape[3])
        if held is not None:
            grown[:, :, : self.length] = held[:, :, : self.length]
        return grown


class Cache:
    """One :class:`LayerCache` for each layer of a network.

    Args:
        depth: How many layers there are.
    """

    def __init__(self, depth: int) -> None:
        self.layers = [LayerCache() for _ in range(depth)]

    @property
    def length(self) -> int:
        """How many tokens have been read."""
        return self.layers[0].length
