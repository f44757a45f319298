"""What is due to the order of a block and what to where it drops: both orders with both kinds of dropout.

In the published code ``res`` drops elements of the whole stream after every block and ``res+`` elements of the branch
alone, so its comparison of orders is one of dropout too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from normplace.lab.study import Part
from normplace.studies.deepergcn.depth import GRID, REAL, SEEDS
from normplace.studies.deepergcn.node import DROPPED, NodeTrial, label, ready, run

ORDERS = ("res+", "res")
DEPTH = {"grid-mines": 7, "minesweeper": 14, "tolokers": 14}


def plan(scale: str) -> Iterator[NodeTrial]:
    """Two orders, two places of dropout."""
    sizes = {"grid-mines": GRID["smoke" if scale == "smoke" else "laptop"]} | (REAL if scale == "full" else {})
    for data, size in reversed(sizes.items()):
        for seed in range(SEEDS):
            for order in ORDERS:
                trial = NodeTrial(data, order, DEPTH[data], seed, **size)
                for dropped in DROPPED:
                    yield replace(trial, dropped=dropped, dropout=0.2)


PART = Part(name="dropout", config=NodeTrial, plan=plan, run=run, label=label, ready=ready)
