"""The study's claims, part by part."""

from normplace.lab.studies.periln.claims import bound, initialization, pretraining, training

PARTS = (bound, training, initialization, pretraining)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
