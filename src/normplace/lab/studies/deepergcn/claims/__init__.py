"""The study's claims, part by part."""

from normplace.lab.studies.deepergcn.claims import (
    aggregation,
    anchors,
    depth,
    dropout,
    initial_gradients,
    memory,
    molhiv,
    molhiv_official,
    orders,
    recipes,
)
from normplace.lab.studies.deepergcn.claims.graphs import GRID, PUBLISHED

CLAIMS = (
    *(claim for graphs in (GRID, PUBLISHED) for part in (depth, dropout, aggregation) for claim in part.claims(graphs)),
    *memory.CLAIMS,
    *molhiv.CLAIMS,
    *anchors.CLAIMS,
    *orders.CLAIMS,
    *molhiv_official.CLAIMS,
    *recipes.CLAIMS,
    *initial_gradients.CLAIMS,
)
