"""What the paper says, part by part, and the numbers that would show it."""

from normplace.studies.extrapolation.claims import faces, protein, sequence, toy, variants

CLAIMS = (*toy.CLAIMS, *variants.CLAIMS, *sequence.CLAIMS, *protein.CLAIMS, *faces.CLAIMS)
