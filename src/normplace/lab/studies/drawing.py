"""The figures of a study, from those of its parts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure


def figures_of(*parts: ModuleType) -> Callable[[Records], list[Figure]]:
    """The function that draws the figures of every part; those without rows, for lack of records, are left out."""

    def figures(records: Records) -> list[Figure]:
        return [figure for part in parts for figure in part.figures(records) if figure.rows]

    return figures
