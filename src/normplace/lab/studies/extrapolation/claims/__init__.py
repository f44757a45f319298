"""The study's claims, part by part."""

from normplace.lab.studies.extrapolation.claims import faces, kernels, protein, sequence, toy, variants, wide

PARTS = (toy, kernels, wide, variants, sequence, protein, faces)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
