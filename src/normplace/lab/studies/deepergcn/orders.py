"""Block order × aggregation × depth, over the official splits, with what happens along the depth.

Every seed is one split. The order ``dense`` is trained up to 28 layers only, because its stream grows with every block.
The greatest depth is trained with four of the aggregations; on Tolokers, whose graph has a million edges, with five of
the ten splits. The networks that decide claims are trained first, claim by claim, then the rest of the cross product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from normplace.lab.studies.deepergcn.depth import GRID, REAL
from normplace.lab.studies.deepergcn.depth import SEEDS as GRID_SEEDS
from normplace.lab.studies.deepergcn.node_seeds import SeedsTrial, seeds_part

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
FEWER_SPLITS = 5
"""Splits of the deepest stacks on the largest graph, which take longest."""
LARGEST_GRAPH = "tolokers"
SHALLOW, USUAL, DEEP, DEEPEST = 3, 7, 28, 112
GRID_DEPTHS = {"smoke": (2, 3), "laptop": (SHALLOW, 16)}
GRID_AGGREGATIONS = {"smoke": (LEARNED, "power mean per channel", "softmax sum"), "laptop": AGGREGATIONS}
GRID_GROWTH = 4
"""Channels that a block of ``dense`` appends to the narrow stacks on the grid; a quarter of the width, as elsewhere."""
OTHER = ("squirrel_filtered", "chameleon_filtered", "actor")
"""Graphs on which only the mean and the paper's aggregation are trained."""
OTHER_SETTINGS: dict[str, Any] = {"epochs": 200, "dropout": 0.2}


class Cell(NamedTuple):
    """A network on a published graph, for all of its splits."""

    data: str
    order: str
    depth: int
    aggregation: str

    def trials(self) -> Iterator[SeedsTrial]:
        """One trial per split."""
        settings = OTHER_SETTINGS if self.data in OTHER else REAL[self.data]
        fewer = self.data == LARGEST_GRAPH and self.depth == DEEPEST
        for seed in range(FEWER_SPLITS if fewer else SPLITS):
            yield SeedsTrial(self.data, self.order, self.depth, seed, aggregation=self.aggregation, **settings)


def _deciding() -> Iterator[Cell]:
    """The cells that claims read, claim by claim; smaller graphs and shallower stacks first."""
    for data in (*OTHER, *REAL):
        for depth in (SHALLOW, DEEPEST):
            for order in ("plain", "res+"):
                yield Cell(data, order, depth, LEARNED)
    for data in REAL:
        for depth in (USUAL, DEEP):
            for aggregation in AGGREGATIONS:
                if aggregation not in ("mean", "max"):
                    yield Cell(data, "res+", depth, aggregation)
    for data in REAL:
        for depth, orders in ((DEEP, ("res+", "dense")), (DEEPEST, ("plain", "res+", "res"))):
            for aggregation in CORE:
                for order in orders:
                    yield Cell(data, order, depth, aggregation)


def _cross_product() -> Iterator[Cell]:
    """Every cell, shallower stacks first."""
    for depth in (SHALLOW, USUAL, DEEP, DEEPEST):
        for data in (*OTHER, *REAL):
            if data in OTHER and depth == USUAL:
                continue
            for order in ORDERS:
                for aggregation in ("mean", LEARNED) if data in OTHER else AGGREGATIONS:
                    if depth <= DEEP or (order != "dense" and aggregation in CORE):
                        yield Cell(data, order, depth, aggregation)


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
    deciding = list(dict.fromkeys(_deciding())) if scale == "full" else []
    for cell in deciding:
        yield from cell.trials()
    yield from _grid("smoke" if scale == "smoke" else "laptop")
    if scale == "full":
        for cell in dict.fromkeys(_cross_product()):
            if cell not in deciding:
                yield from cell.trials()


PART = seeds_part("orders", plan, most_seeds=SPLITS)
