"""Edges as sorted keys ``source * nodes + target``, without self-loops and repeats, for graphs that nearly fill memory.

The keys are sorted in place and every other step works on one block of edges at a time, so that the keys are the only
large array besides the edges, which may be memory-mapped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16
"""Edges of a block, whose arrays fit in the cache of one core."""


def sorted_keys(
    source: NDArray[np.integer], target: NDArray[np.integer], num_nodes: int, undirected: bool
) -> NDArray[np.int64]:
    """The distinct keys in ascending order.

    Args:
        source: The source of each edge, from 0 to ``num_nodes - 1``.
        target: The target of each edge, likewise.
        num_nodes: Number of nodes.
        undirected: Whether every edge also counts in the other direction.
    """
    keys = np.empty(len(source) * (2 if undirected else 1), np.int64)
    end = 0
    for first in range(0, len(source), BLOCK):
        one, other = source[first : first + BLOCK].astype(np.int64), target[first : first + BLOCK].astype(np.int64)
        distinct = one != other
        for start, stop in ((one, other), (other, one))[: 2 if undirected else 1]:
            block = (start * num_nodes + stop)[distinct]
            keys[end : end + len(block)] = block
            end += len(block)
    keys = keys[:end]
    keys.sort()
    return _without_repeats(keys)


def _without_repeats(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct ones among sorted keys, moved to the front of the same memory."""
    end = min(len(keys), 1)
    for first in range(1, len(keys), BLOCK):
        block = keys[first : first + BLOCK].copy()
        # The key before a block may have been overwritten, but only by an equal one: the last key that was kept.
        previous = np.concatenate([keys[end - 1 : end], block[:-1]])
        block = block[block != previous]
        keys[end : end + len(block)] = block
        end += len(block)
    return keys[:end]


def split_keys(keys: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """The edges of keys, 2 × E."""
    edges = np.empty((2, len(keys)), np.int64)
    for first in range(0, len(keys), BLOCK):
        last = first + BLOCK
        np.divmod(keys[first:last], num_nodes, out=(edges[0, first:last], edges[1, first:last]))
    return edges


def rows_of_keys(keys: NDArray[np.int64], num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The compressed rows (CSR) of sorted keys: where the targets of each source start, and the targets."""
    targets = np.empty(len(keys), np.int32)
    for first in range(0, len(keys), BLOCK):
        np.remainder(keys[first : first + BLOCK], num_nodes, out=targets[first : first + BLOCK], casting="unsafe")
    return np.searchsorted(keys, np.arange(num_nodes + 1, dtype=np.int64) * num_nodes), targets
