"""The sets of graphs that claims are tested on, and their shared gate."""

from __future__ import annotations

from collections.abc import Callable

from normplace.lab.studies.cases import Cases
from normplace.lab.studies.deepergcn.depth import SEEDS
from normplace.lab.trials.claims import Check
from normplace.lab.trials.per_seed import Measure

ABOVE_CHANCE = 0.6
"""ROC-AUC from which a network counts as having learned its graph; chance is 0.5."""
PILOTS = (
    "The published tables of this comparison are not known to us, so the threshold is our choice, made after "
    "single-seed pilots on the grid. Three seeds of the grid were too few to decide, so they were raised to five; its "
    "size and epochs were then reduced, over four runs, to one or two minutes on two cores. On the published graphs "
    "three seeds were recorded and judged first, then two more of every network."
)


GRID = Cases("grid", ("grid-mines",), "On a generated grid of mines,", SEEDS)
PUBLISHED = Cases("published", ("minesweeper", "tolokers"), "On Minesweeper and Tolokers,", SEEDS)
GRAPHS = GRID.cases + PUBLISHED.cases


def learned(label: str, measure: Callable[[str], Measure]) -> Callable[[str], Check]:
    """Gate: a network has learned a graph."""
    return lambda data: Check(f"ROC-AUC, {label}, {data}", measure(data), at_least=ABOVE_CHANCE)
