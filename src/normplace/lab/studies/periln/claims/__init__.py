"""The study's claims, part by part."""

from normplace.lab.studies.periln.claims import bound, initialization, pretraining, theory, training

PARTS = (bound, training, initialization, pretraining, theory)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
