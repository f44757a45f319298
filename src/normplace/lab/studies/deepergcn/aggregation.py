"""Fixed and learned aggregation, and MsgNorm, in res+ stacks of the published depth of 7."""

from __future__ import annotations

from collections.abc import Iterator

from normplace.lab.studies.deepergcn.depth import GRID, REAL, SEEDS, USUAL
from normplace.lab.studies.deepergcn.networks import AGGREGATIONS
from normplace.lab.studies.deepergcn.node import NodeTrial, node_part

WITH_MSG_NORM = ("mean", "sum", "softmax learned")
DEPTH = {"smoke": 2, "laptop": 4, "full": USUAL}


def plan(scale: str) -> Iterator[NodeTrial]:
    """Every aggregation, and some of them with MsgNorm."""
    grid = "smoke" if scale == "smoke" else "laptop"
    sizes = {"grid-mines": GRID[grid]} | (REAL if scale == "full" else {})
    for data, size in reversed(sizes.items()):
        depth = DEPTH[scale if data in REAL else grid]
        for seed in range(SEEDS):
            for aggregation in AGGREGATIONS:
                for msg_norm in (False, True) if aggregation in WITH_MSG_NORM else (False,):
                    yield NodeTrial(data, "res+", depth, seed, aggregation=aggregation, msg_norm=msg_norm, **size)


PART = node_part("aggregation", plan)
