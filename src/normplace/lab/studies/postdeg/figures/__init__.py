"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.drawing import figures_of
from normplace.lab.studies.postdeg.figures import (
    budgets,
    extended,
    mis,
    recommend,
    selection,
    social,
    topologies,
    transfer,
)

figures = figures_of(selection, topologies, transfer, mis, budgets, extended, recommend, social)
