"""Keys and values of earlier tokens, so that the next token costs one row of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.errors import UsageError

INITIAL_CAPACITY = 64


def check_no_gradients(*tensors: Tensor) -> None:
    """Check that what a cache will hold requires no gradients.

    Raises:
        UsageError: If it does.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise UsageError("a cache holds no gradients: call the network under torch.no_grad(), or without a cache.")


class LayerCache:
    """Keys and values of one layer; the capacity doubles when it is exhausted."""

    def __init__(self) -> None:
        self.length = 0
        self.memory: tuple[Tensor, Tensor] | None = None
        """Keys and values of the encoder's output, in a decoder."""
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all of them, batch × heads × length × features.

        Args:
            keys: Keys of the new tokens.
            values: Values of the new tokens.

        Raises:
            UsageError: If they require gradients, or the batch size differs.
        """
        check_no_gradients(keys, values)
        self._keys = self._with_capacity(self._keys, keys)
        self._values = self._with_capacity(self._values, values)
        end = self.length + keys.shape[2]
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _with_capacity(self, stored: Tensor | None, new: Tensor) -> Tensor:
        if stored is not None and stored.shape[0] != new.shape[0]:
            raise UsageError(f"the cache has {stored.shape[0]} sequences, but got {new.shape[0]}: make a new cache.")
        needed = self.length + new.shape[2]
        if stored is not None and needed <= stored.shape[2]:
            return stored
        capacity = INITIAL_CAPACITY
        while capacity < needed:
            capacity *= 2
        grown = new.new_empty(*new.shape[:2], capacity, new.shape[3])
        if stored is not None:
            grown[:, :, : self.length] = stored[:, :, : self.length]
        return grown


class Cache:
    """One :class:`LayerCache` for each layer of a network.

    Args:
        depth: Number of layers.
    """

    def __init__(self, depth: int) -> None:
        self.layers = [LayerCache() for _ in range(depth)]
        self.source_mask: Tensor | None = None
        """Which tokens of the encoder may be attended to."""

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return self.layers[0].length
