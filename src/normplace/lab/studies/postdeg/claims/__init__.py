"""The study's claims, part by part."""

from normplace.lab.studies.postdeg.claims import (
    budgets,
    classical,
    extended,
    mis,
    plateau,
    recommend,
    selection,
    social,
    topologies,
    transfer,
)

PARTS = (selection, classical, topologies, transfer, mis, budgets, extended, recommend, plateau, social)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
