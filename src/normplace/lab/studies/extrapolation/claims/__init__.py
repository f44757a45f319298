"""What the paper says, part by part, and the numbers that would show it."""

from normplace.lab.studies.extrapolation.claims import faces, kernels, protein, sequence, toy, variants, wide

PARTS = (toy, kernels, wide, variants, sequence, protein, faces)
CLAIMS = tuple(claim for part in PARTS for claim in part.CLAIMS)
