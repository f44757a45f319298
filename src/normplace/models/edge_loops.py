"""Sums over the edges of large graphs, compiled with numba."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True)
def add_along_edges(sources: np.ndarray, targets: np.ndarray, values: np.ndarray, sums: np.ndarray) -> None:
    """Add the value of each edge's source to the sum of its target, in the order of the edges."""
    for edge in range(len(sources)):
        sums[targets[edge]] += values[sources[edge]]
