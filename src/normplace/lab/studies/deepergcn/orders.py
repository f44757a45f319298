"""Block order × aggregation × depth, over the official splits, with what happens along the depth.

Every seed is one split. The order ``dense`` is trained up to 28 layers only, because its stream grows with every block.
The greatest depth is trained with four of the aggregations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normplace.lab.studies.deepergcn.depth import GRID, REAL
from normplace.lab.studies.deepergcn.depth import SEEDS as GRID_SEEDS
from normplace.lab.studies.deepergcn.node import label, why_unavailable
from normplace.lab.studies.deepergcn.node_seeds import SeedsTrial, run, run_seeds
from normplace.lab.trials.study import Part

ORDERS = ("res+", "res", "plain", "dense")
LEARNED = "softmax learned"
"""The paper's aggregation."""
CORE = ("mean", "max", LEARNED, "power mean learned")
"""Aggregations of the deepest stacks."""
AGGREGATIONS = (
    "mean",
    "max",
    "softmax",
    "softmax learned",
    "softmax per channel",
    "softmax sum",
    "power mean",
    "power mean learned",
    "power mean per channel",
    "power sum",
)
SPLITS = 10
SHALLOW, USUAL, DEEP, DEEPEST = 3, 7, 28, 112
GRID_DEPTHS = {"smoke": (2, 3), "laptop": (SHALLOW, 16)}
GRID_AGGREGATIONS = {"smoke": (LEARNED, "power mean per channel", "softmax sum"), "laptop": AGGREGATIONS}
GRID_GROWTH = 4
"""Channels that a block of ``dense`` appends to the narrow stacks on the grid; a quarter of the width, as elsewhere."""
OTHER = ("squirrel_filtered", "chameleon_filtered", "actor")
"""Graphs on which only the mean and the paper's aggregation are trained."""
OTHER_SETTINGS: dict[str, Any] = {"epochs": 200, "dropout": 0.2}


def _published(data: str, depths: tuple[int, ...], settings: dict[str, Any]) -> Iterator[SeedsTrial]:
    """The trials on a published graph; the deepest first, because they take longest."""
    names = ("mean", LEARNED) if data in OTHER else AGGREGATIONS
    for depth in depths[::-1]:
        for order in ORDERS:
            if order == "dense" and depth > DEEP:
                continue
            for aggregation in names:
                if depth <= DEEP or aggregation in CORE:
                    for seed in range(SPLITS):
                        yield SeedsTrial(data, order, depth, seed, aggregation=aggregation, **settings)


def _grid(scale: str) -> Iterator[SeedsTrial]:
    """Every order on the generated grid, and every aggregation in the shallow res+ stack."""
    shallow, names = GRID_DEPTHS[scale][0], GRID_AGGREGATIONS[scale]
    for depth in GRID_DEPTHS[scale][::-1]:
        for order in ORDERS:
            for aggregation in names if (order, depth) == ("res+", shallow) else (LEARNED,):
                for seed in range(2 if scale == "smoke" else GRID_SEEDS):
                    settings = {**GRID[scale], "growth": GRID_GROWTH}
                    yield SeedsTrial("grid-mines", order, depth, seed, aggregation=aggregation, **settings)


def plan(scale: str) -> Iterator[SeedsTrial]:
    """The grid, and the published graphs at ``full``."""
    if scale == "full":
        for data, settings in REAL.items():
            yield from _published(data, (SHALLOW, USUAL, DEEP, DEEPEST), settings)
        for data in OTHER:
            yield from _published(data, (SHALLOW, DEEP, DEEPEST), OTHER_SETTINGS)
    yield from _grid("smoke" if scale == "smoke" else "laptop")


PART = Part(
    name="orders",
    config=SeedsTrial,
    plan=plan,
    run=run,
    label=label,
    unavailable_reason=why_unavailable,
    most_seeds=SPLITS,
    run_seeds=run_seeds,
)
