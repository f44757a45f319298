"""Claims that are tested on sets of graphs: one check per graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normplace.lab.studies.deepergcn.depth import FEWER_SEEDS, SEEDS
from normplace.lab.trials.claims import Check, sign_and_size
from normplace.lab.trials.per_seed import Measure

ABOVE_CHANCE = 0.6
"""ROC-AUC from which a network counts as having learned its graph; chance is 0.5."""
PILOTS = (
    "The published tables of this comparison are not known to us, so the threshold is our choice, made after "
    "single-seed pilots on the grid. Three seeds of the grid were too few to decide, so they were raised to five; its "
    "size and epochs were then reduced, over four runs, to one or two minutes on two cores."
)


@dataclass(frozen=True)
class GraphSet:
    """Graphs that a claim is tested on.

    Args:
        name: Suffix of claim ids.
        graphs: Names of the graphs.
        place: Start of a statement, such as ``On Tolokers``.
        seeds: Seeds that each check needs.
    """

    name: str
    graphs: tuple[str, ...]
    place: str
    seeds: int

    def checks(
        self,
        label: str,
        measure: Callable[[str], Measure],
        gate: Callable[[str], Check] | None = None,
        signed: bool = False,
        **threshold: float,
    ) -> tuple[Check, ...]:
        """The same check on each graph.

        Args:
            label: What is measured.
            measure: From the name of a graph to its measure.
            gate: From the name of a graph to a precondition.
            signed: Whether the claim is about a direction, so that the sign has a check.
            **threshold: The threshold.
        """
        checks: list[Check] = []
        for data in self.graphs:
            options: dict[str, Any] = {**threshold, "gates": (gate(data),) if gate else ()}
            if signed:
                checks += sign_and_size(f"{label}, {data}", measure(data), **options)
            else:
                checks.append(Check(f"{label}, {data}", measure(data), **options))
        return tuple(checks)


GRID = GraphSet("grid", ("grid-mines",), "On a generated grid of mines,", SEEDS)
PUBLISHED = GraphSet("published", ("minesweeper", "tolokers"), "On Minesweeper and Tolokers,", FEWER_SEEDS)
GRAPHS = GRID.graphs + PUBLISHED.graphs


def learned(label: str, measure: Callable[[str], Measure]) -> Callable[[str], Check]:
    """Gate: a network has learned a graph."""
    return lambda data: Check(f"ROC-AUC, {label}, {data}", measure(data), at_least=ABOVE_CHANCE)
