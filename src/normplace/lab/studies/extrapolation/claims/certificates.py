"""Claims on the certificate of boundedness."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.certificates import PART
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import metric

_BOTH_KINDS = (
    Check("networks of ten with a proof of boundedness", metric(PART.name, "certified"), at_least=1),
    Check("networks of ten with a ray of growth", metric(PART.name, "refuted"), at_least=1),
)
_NOTE = (
    "A hundred random networks of one to four layers with norms, gates, skips and saturating activations at random. "
    "The search changes 264 directions by 30 gradient steps to increase the output at distance 1e8, and counts growth "
    "by half a decade or more from 1e4. Void unless both kinds of network occur."
)

CLAIMS = (
    Claim(
        id="certificates-are-not-broken",
        paper=OURS,
        statement="No network with a proof of boundedness grows in any direction that a search finds.",
        checks=(Check("broken proofs of ten networks", metric(PART.name, "broken"), at_most=0),),
        gates=_BOTH_KINDS,
        seeds=5,
        note=_NOTE,
    ),
    Claim(
        id="certificates-miss-few",
        paper=OURS,
        statement="Few networks for which the search finds no growth are left without a proof.",
        checks=(
            Check("networks of ten without growth and without a proof", metric(PART.name, "uncertified"), at_most=0.5),
        ),
        gates=_BOTH_KINDS,
        seeds=5,
        note=f"One in twenty networks is our threshold. {_NOTE}",
    ),
)
