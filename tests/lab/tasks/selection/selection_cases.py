"""Random small graphs for the tests of node selection."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="node selection needs numba")

from normplace.lab.tasks.selection import Graph, barabasi_albert, erdos_renyi


def small_graph(number: int, most: int = 40) -> Graph:
    """Sparse, dense, scale-free, edgeless and one-node graphs in turn."""
    generator = np.random.default_rng(number)
    n = int(generator.integers(1, most))
    if number % 4 == 0 and n > 3:
        return barabasi_albert(n, int(generator.integers(1, 3)), generator)
    return erdos_renyi(n, float(generator.choice([0.0, 0.05, 0.1, 0.3, 0.9])), generator)


def path(n: int) -> Graph:
    return Graph.from_edges([[i, i + 1] for i in range(n - 1)], n)
