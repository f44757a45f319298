"""Stacks of growing depth in every block order, with branch dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normplace.lab.studies.deepergcn.node import NodeTrial, node_part

ORDERS = ("res+", "res", "plain")
SEEDS = 5
GRID: dict[str, dict[str, Any]] = {
    "smoke": {"side": 10, "dim": 8, "epochs": 3},
    "laptop": {"side": 50, "dim": 16, "epochs": 50, "learning_rate": 1e-2, "dropout": 0.2},
}
"""Settings on the generated grid by scale, shared by all parts."""
REAL: dict[str, dict[str, Any]] = {
    "minesweeper": {"epochs": 300, "dropout": 0.2},
    "tolokers": {"epochs": 150, "dropout": 0.2},
}
"""Settings on the published graphs, shared by all parts."""
DEPTHS = {"smoke": (2, 3), "laptop": (2, 7, 16)}
REAL_DEPTHS = {"minesweeper": (2, 7, 14, 28, 56, 112), "tolokers": (2, 7, 14, 28, 56)}
USUAL = 7
"""Depth that the deepest stacks are compared with; trained on every graph."""


def plan(scale: str) -> Iterator[NodeTrial]:
    """The grid, and the published graphs at ``full``; the deepest networks first, because they take longest."""
    size = "smoke" if scale == "smoke" else "laptop"
    if scale == "full":
        for data, depths in REAL_DEPTHS.items():
            for depth in depths[::-1]:
                for seed in range(SEEDS):
                    for order in ORDERS:
                        yield NodeTrial(data, order, depth, seed, **REAL[data])
    for depth in DEPTHS[size][::-1]:
        for seed in range(SEEDS):
            for order in ORDERS:
                yield NodeTrial("grid-mines", order, depth, seed, **GRID[size])


PART = node_part("depth", plan, in_demo=lambda trial: True)
