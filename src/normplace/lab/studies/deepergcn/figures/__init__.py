"""The study's figures, part by part."""

from __future__ import annotations

from normplace.lab.studies.deepergcn.figures import (
    aggregation,
    depth,
    dropout,
    initial_gradients,
    memory,
    orders,
    recipes,
    scores,
)
from normplace.lab.studies.drawing import figures_of

figures = figures_of(depth, dropout, aggregation, memory, scores, orders, recipes, initial_gradients)
