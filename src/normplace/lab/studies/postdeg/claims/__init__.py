"""The study's claims, part by part."""

from normplace.lab.studies.postdeg.claims import recommend, selection, social, topologies

PARTS = (selection, topologies, recommend, social)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
